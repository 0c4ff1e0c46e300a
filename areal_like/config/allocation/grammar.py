"""Reads `allocation_mode` and the `.backend` keys by one table, GRAMMAR. Syntax only; `compatibility` checks what the
sizes mean.

    mode    := "auto" | "heuristic" | "" | "manual" | trainer
             | server [("+" | "|") trainer] | server "+" ("eval" | "cpu")
    server  := name (":" | ".") sizes       the name of an engine
    trainer := [(fsdp|megatron) (":" | ".")] (sizes | hybrid)
    hybrid  := ["("] "attn:" sizes "|" "ffn:" sizes [")"]
    backend := "auto" | "" | a name | a name with sizes
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import NoReturn

from areal_like.config.allocation.base import DIMENSIONS, TRAINERS, AllocationMode, BackendSpec, ParallelDims
from areal_like.config.engines import default_engine, engine_names, example_engine

MAX_DIGITS = 6
MAX_QUOTE_LENGTH = 70


@dataclass(frozen=True)
class AllowedTerms:
    """What may stand at one place of a text."""

    servers: bool = False
    trainers: bool = False
    sizes_alone: bool = False
    """Sizes without a name, for a trainer."""
    name_alone: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    """Spelling -> meaning."""

    @property
    def engines(self) -> tuple[str, ...]:
        return (engine_names() if self.servers else ()) + (TRAINERS if self.trainers else ())

    def __str__(self) -> str:
        trainers = [*TRAINERS, "sizes only"] if self.sizes_alone else TRAINERS
        roles = [f"servers ({', '.join(engine_names())})"] if self.servers else []
        roles += [f"a trainer ({', '.join(trainers)})"] if self.trainers else []
        return "expected " + " or ".join([*roles, *dict.fromkeys(self.words.values())])


AUTO = {"": "auto", "auto": "auto"}
KEYWORDS = {**AUTO, "heuristic": "auto", "manual": "manual"}
CLIENTS = {"eval": "eval", "cpu": "cpu"}
GRAMMAR = {
    "mode": AllowedTerms(servers=True, trainers=True, sizes_alone=True, words=KEYWORDS),
    "mode+": AllowedTerms(trainers=True, sizes_alone=True, words=CLIENTS),
    "mode|": AllowedTerms(trainers=True, sizes_alone=True),
    "server": AllowedTerms(servers=True, name_alone=True, words=AUTO),
    "trainer": AllowedTerms(trainers=True, name_alone=True, words=AUTO),
}
"""`mode+` and `mode|` are behind servers and that separator."""
LETTERS = {"a server": "dtp", "a trainer": "dtpce", "the attn part": "dtpc", "the ffn part": "dtpe"}
REPLACEMENTS = {
    **dict.fromkeys(("archon", "deepspeed", "torchtitan"), "fsdp"),
    **dict.fromkeys(("hf", "transformers"), default_engine().name),
}


class AllocationSyntaxError(ValueError):
    """A syntax error; `position` counts characters from 1."""

    def __init__(self, text: str, position: int, message: str) -> None:
        self.text, self.position, self.message = text, position, message
        quote = text if len(text) <= MAX_QUOTE_LENGTH else text[: MAX_QUOTE_LENGTH - 3] + "..."
        where = f"position {position}" + (", its end" if position > len(text) else "")
        super().__init__(f"{quote!r} cannot be read ({where}): {message}")


def parse_mode(text: str) -> AllocationMode:
    """Parses `allocation_mode`."""
    reader = AllocationReader(text)
    first = reader.part(GRAMMAR["mode"])
    if isinstance(first, str):
        return AllocationMode(keyword="manual" if first == "manual" else "auto")
    separator = reader.peek()
    if first.backend not in engine_names():
        if separator in ("+", "|"):
            example = f"{example_engine()}:d4+fsdp:d4"
            reader.fail(f"'{first}' is a trainer, so nothing can follow it. Servers come first: {example}")
        reader.end()
        return AllocationMode(train=first)
    if f"mode{separator}" not in GRAMMAR or not separator:
        reader.end("'+' and a trainer, ")
        return AllocationMode(rollout=first)
    reader.at += 1
    second = reader.part(GRAMMAR[f"mode{separator}"])
    reader.end()
    if isinstance(second, str):
        return AllocationMode(rollout=first, client="eval" if second == "eval" else "cpu")
    return AllocationMode(rollout=first, train=second, colocated=separator == "|")


def parse_server(text: str) -> BackendSpec:
    """Parses `rollout.backend`."""
    return _backend(text, GRAMMAR["server"])


def parse_trainer(text: str) -> BackendSpec:
    """Parses `actor.backend` and the like."""
    return _backend(text, GRAMMAR["trainer"])


def _backend(text: str, place: AllowedTerms) -> BackendSpec:
    reader = AllocationReader(text)
    part = reader.part(place)
    if reader.peek() in ("+", "|"):
        reader.fail("only one engine is allowed here; set servers and trainer together in allocation_mode")
    reader.end()
    return BackendSpec() if isinstance(part, str) else part


class AllocationReader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """The next character that is not a space, or "" at the end."""
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, pattern: str) -> str:
        self.peek()
        match = re.compile(pattern).match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match.group() if match else ""

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        self.peek()
        raise AllocationSyntaxError(self.text, (self.at if at is None else at) + 1, message)

    def end(self, other: str = "") -> None:
        left = self.peek()
        if left and left in "+|":
            self.fail(
                "there is one part for servers and one for trainers; set ref and critic in ref.backend and "
                "critic.backend"
            )
        if left:
            self.fail(f"expected a further size, {other}or the end, found {left!r}")

    def part(self, place: AllowedTerms) -> BackendSpec | str:
        """An engine, sizes, or a word of the place."""
        self.peek()
        start = self.at
        if place.sizes_alone and self._at_hybrid():
            return self._hybrid(None)
        word = self.take(r"[A-Za-z][A-Za-z0-9_-]*")
        separator = self.peek()
        if word in place.words and (not separator or (word and word in CLIENTS)):
            return place.words[word]
        if separator == "[":
            example = f"write {word or 'fsdp'}:d4; ref and critic have a backend key each"
            self.fail(f"named parts are not supported: {example}")
        if not word:
            self.fail(str(place))
        has_name = separator in (":", ".") and separator != ""
        if not has_name and re.match(r"[A-Za-z][-0-9]|[dtpce0-9]+$", word):
            if not place.sizes_alone:
                example = f"{place.engines[0]}:{word}"
                self.fail(f"sizes need an engine here: {example}. {str(place).capitalize()}", at=start)
            self.at = start
            return BackendSpec(dims=self._sizes("a trainer"))
        if word not in place.engines:
            self.fail(_unknown(word, place), at=start)
        if place.name_alone and not separator:
            return BackendSpec(word)
        if not has_name:
            self.fail(f"'{word}' needs sizes here, such as {word}:d4")
        self.at += 1
        if word in engine_names():
            return BackendSpec(word, self._sizes("a server"))
        return self._hybrid(word) if self._at_hybrid() else BackendSpec(word, self._sizes("a trainer"))

    def _at_hybrid(self) -> bool:
        return self.peek() == "(" or bool(re.compile(r"attn\s*:").match(self.text, self.at))

    def _hybrid(self, backend: str | None) -> BackendSpec:
        opened = self.take(r"\(")
        attention = self._labelled("attn")
        if not self.take(r"\|"):
            self.fail("expected a further size, or '|' and the ffn part: attn:d4t2|ffn:d2t2e2")
        start = self.at
        experts = self._labelled("ffn")
        if "d" not in self.text[start : self.at]:
            rest = experts.pipeline * experts.tensor * experts.expert
            experts = replace(experts, data=max(1, attention.world_size // rest))
        if opened and not self.take(r"\)"):
            self.fail("expected a further size, or ')'")
        return BackendSpec(backend, attention, experts)

    def _labelled(self, label: str) -> ParallelDims:
        if not self.take(rf"{label}\s*:"):
            self.fail(f"expected '{label}:' (a hybrid reads attn:d4t2|ffn:d2t2e2)")
        return self._sizes(f"the {label} part")

    def _sizes(self, owner: str) -> ParallelDims:
        """`owner` has these letters in LETTERS."""
        sizes: dict[str, int] = {}
        takes = f"{owner} takes " + ", ".join(f"{letter} {DIMENSIONS[letter]}" for letter in LETTERS[owner])
        while (letter := self.peek()).isalpha():
            if letter not in LETTERS[owner]:
                self.fail(_unknown_letter(letter, owner, takes))
            if letter in sizes:
                self.fail(f"'{letter}' is given twice; give each dimension once")
            self.at += 1
            sizes[letter] = self._number(letter)
        if not sizes:
            self.fail(f"expected sizes, such as d4 ({takes})")
        return ParallelDims(**{DIMENSIONS[letter]: size for letter, size in sizes.items()})

    def _number(self, letter: str) -> int:
        self.peek()
        start, digits = self.at, self.take(r"[0-9]+")
        if not digits:
            self.fail(f"expected a number after '{letter}', such as {letter}2")
        if len(digits) > MAX_DIGITS:
            self.fail(f"a number of {len(digits)} digits is more than any cluster has", at=start)
        if int(digits) == 0:
            self.fail(f"{letter}{digits} is not possible: a size is at least 1 (leave '{letter}' out for 1)", at=start)
        if digits[0] == "0":
            self.fail(f"write {letter}{int(digits)}, without the leading 0", at=start)
        return int(digits)


def _unknown_letter(letter: str, owner: str, takes: str) -> str:
    if letter.lower() in LETTERS[owner]:
        return f"write '{letter.lower()}' in lower case ({takes})"
    if letter in DIMENSIONS:
        return f"'{letter}' ({DIMENSIONS[letter]}) is not for {owner}: {takes}"
    old = " ('m', model, is t now)" if letter == "m" else ""
    return f"there is no dimension '{letter}'{old}: {takes}"


def _unknown(word: str, place: AllowedTerms) -> str:
    if word in engine_names():
        return f"'{word}' serves and does not train; {place}"
    if word in TRAINERS:
        return f"'{word}' trains and does not serve; {place}"
    if word in KEYWORDS:
        return f"'{word}' cannot be combined; {place}"
    if word in CLIENTS:
        return f"'{word}' is allowed only after servers and '+', as in {example_engine()}:d4+{word}; {place}"
    stand_in = REPLACEMENTS.get(word.lower())
    if stand_in in place.engines:
        return f"'{word}' is not an engine of this framework, use {stand_in}; {place}"
    near = get_close_matches(word.lower(), [*place.engines, *dict.fromkeys(place.words.values())], n=1)
    own = "" if near or not place.engines else "; an engine of your own needs --schema, whose module registers it"
    return f"'{word}' is not known{f', did you mean {near[0]}?' if near else ';'} {place}{own}"
