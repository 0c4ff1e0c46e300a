"""Reads `allocation_mode` and the `.backend` keys. A recursive descent, one function per rule:

    mode    := "auto" | "heuristic" | "" | "manual" | trainer
             | server [("+" | "|") trainer] | server "+" ("eval" | "cpu")
    server  := name (":" | ".") dims       the name of an engine    letters d t p
    trainer := [(fsdp|megatron) (":" | ".")] (dims | hybrid)        letters d t p c e

A `.backend` key is "", "auto", a name, or a name with sizes. This file checks
syntax only; `compatibility` checks what the sizes mean.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal, NoReturn

from areal_like.config.allocation.base import DIMENSIONS, TRAINERS, AllocationMode, BackendSpec, ParallelDims
from areal_like.config.engines import default_engine, engine_names, example_engine

MAX_DIGITS = 6
MAX_QUOTE_LENGTH = 70


class AllocationSyntaxError(ValueError):
    """A syntax error; `position` counts characters from 1."""

    def __init__(self, text: str, position: int, message: str) -> None:
        self.text, self.position, self.message = text, position, message
        quote = text if len(text) <= MAX_QUOTE_LENGTH else text[: MAX_QUOTE_LENGTH - 3] + "..."
        where = f"position {position}" + (", its end" if position > len(text) else "")
        super().__init__(f"{quote!r} cannot be read ({where}): {message}")


class Scanner:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """The next character that is not a space, or "" at the end."""
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        matches = self.peek() == character
        self.at += matches
        return matches

    def match(self, pattern: str) -> str:
        self.peek()
        match = re.compile(pattern).match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match.group() if match else ""

    def word(self) -> str:
        return self.match(r"[A-Za-z][A-Za-z0-9_-]*")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        self.peek()
        raise AllocationSyntaxError(self.text, (self.at if at is None else at) + 1, message)

    def sizes(self, letters: str, owner: str) -> ParallelDims:
        """Reads dims; `owner` names what takes these letters, for the error message."""
        sizes: dict[str, int] = {}
        while (letter := self.peek()).isalpha():
            if letter not in letters:
                self.fail(_unknown_letter(letter, letters, owner))
            if letter in sizes:
                self.fail(f"'{letter}' is given twice; give each dimension once")
            self.at += 1
            sizes[letter] = self._number(letter)
        if not sizes:
            self.fail(f"expected sizes, such as d4 ({_letters(letters, owner)})")
        return ParallelDims(**{DIMENSIONS[letter]: size for letter, size in sizes.items()})

    def _number(self, letter: str) -> int:
        self.peek()
        start = self.at
        digits = self.match(r"[0-9]+")
        if not digits:
            self.fail(f"expected a number after '{letter}', such as {letter}2")
        if len(digits) > MAX_DIGITS:
            self.fail(f"a number of {len(digits)} digits is more than any cluster has", at=start)
        if int(digits) == 0:
            self.fail(f"{letter}{digits} is not possible: a size is at least 1 (leave '{letter}' out for 1)", at=start)
        if digits[0] == "0":
            self.fail(f"write {letter}{int(digits)}, without the leading 0", at=start)
        return int(digits)

    def at_hybrid(self) -> bool:
        return self.peek() == "(" or bool(re.compile(r"attn\s*:").match(self.text, self.at))

    def hybrid(self, backend: str | None) -> BackendSpec:
        opened = self.take("(")
        self._label("attn")
        attention = self.sizes("dtpc", "the attn part")
        if not self.take("|"):
            self.fail("expected a further size, or '|' and the ffn part: attn:d4t2|ffn:d2t2e2")
        self._label("ffn")
        start = self.at
        experts = self.sizes("dtpe", "the ffn part")
        if "d" not in self.text[start : self.at]:
            rest = experts.pipeline * experts.tensor * experts.expert
            experts = replace(experts, data=max(1, attention.world_size // rest))
        if opened and not self.take(")"):
            self.fail("expected a further size, or ')'")
        return BackendSpec(backend, attention, experts)

    def _label(self, label: str) -> None:
        if not self.match(rf"{label}\s*:"):
            self.fail(f"expected '{label}:' (a hybrid reads attn:d4t2|ffn:d2t2e2)")


def _letters(letters: str, owner: str) -> str:
    return f"{owner} takes " + ", ".join(f"{letter} {DIMENSIONS[letter]}" for letter in letters)


def _unknown_letter(letter: str, letters: str, owner: str) -> str:
    allowed = _letters(letters, owner)
    if letter.lower() in letters:
        return f"write '{letter.lower()}' in lower case ({allowed})"
    if letter in DIMENSIONS:
        return f"'{letter}' ({DIMENSIONS[letter]}) is not for {owner}: {allowed}"
    old = " ('m', model, is t now)" if letter == "m" else ""
    return f"there is no dimension '{letter}'{old}: {allowed}"


KEYWORDS: dict[str, Literal["auto", "manual"]] = {"": "auto", "auto": "auto", "heuristic": "auto", "manual": "manual"}
CLIENTS: dict[str, Literal["eval", "cpu"]] = {"eval": "eval", "cpu": "cpu"}
REPLACEMENTS = {
    "archon": "fsdp",
    "deepspeed": "fsdp",
    "torchtitan": "fsdp",
    "hf": default_engine().name,
    "transformers": default_engine().name,
}


@dataclass(frozen=True)
class _AllowedTerms:
    """What is allowed at one position: engines, words, sizes without a name."""

    servers: bool
    trainers: tuple[str, ...]
    words: tuple[str, ...]
    sizes_alone: bool

    @property
    def engines(self) -> tuple[str, ...]:
        return (engine_names() if self.servers else ()) + self.trainers

    def __str__(self) -> str:
        servers = engine_names() if self.servers else ()
        trainers = [*self.trainers] + ["sizes only"] * self.sizes_alone
        roles = [f"servers ({', '.join(servers)})"] if servers else []
        roles += [f"a trainer ({', '.join(trainers)})"] if trainers else []
        return "expected " + " or ".join([*roles, *self.words])


FIRST = _AllowedTerms(True, TRAINERS, ("auto", "manual"), sizes_alone=True)
AFTER_PLUS = _AllowedTerms(False, TRAINERS, tuple(CLIENTS), sizes_alone=True)
AFTER_BAR = _AllowedTerms(False, TRAINERS, (), sizes_alone=True)
SERVER_KEY = _AllowedTerms(True, (), ("auto",), sizes_alone=False)
TRAINER_KEY = _AllowedTerms(False, TRAINERS, ("auto",), sizes_alone=False)


def parse_mode(text: str) -> AllocationMode:
    """Parses `allocation_mode`."""
    if text.strip() in KEYWORDS:
        return AllocationMode(keyword=KEYWORDS[text.strip()])
    reader = Scanner(text)
    first = _term(reader, FIRST)
    if first.backend not in engine_names():
        if reader.peek() in ("+", "|"):
            example = f"{example_engine()}:d4+fsdp:d4"
            reader.fail(f"'{first}' is a trainer, so nothing can follow it. Servers come first: {example}")
        _end(reader)
        return AllocationMode(train=first)
    if reader.take("|"):
        train = _term(reader, AFTER_BAR)
        _end(reader)
        return AllocationMode(rollout=first, train=train, colocated=True)
    if not reader.take("+"):
        _end(reader, "'+' and a trainer, ")
        return AllocationMode(rollout=first)
    start = reader.at
    if client := CLIENTS.get(reader.word()):
        _end(reader)
        return AllocationMode(rollout=first, client=client)
    reader.at = start
    train = _term(reader, AFTER_PLUS)
    _end(reader)
    return AllocationMode(rollout=first, train=train)


def parse_server(text: str) -> BackendSpec:
    """Parses `rollout.backend`: `name[:dims]`, or nothing ("auto")."""
    return _backend(text, SERVER_KEY)


def parse_trainer(text: str) -> BackendSpec:
    """Parses `actor.backend` and the like: `name[:dims]`, or nothing ("auto")."""
    return _backend(text, TRAINER_KEY)


def _backend(text: str, place: _AllowedTerms) -> BackendSpec:
    if text.strip() in ("", "auto"):
        return BackendSpec()
    reader = Scanner(text)
    if (word := reader.word()) in place.engines and not reader.peek():
        return BackendSpec(word)
    reader.at = 0
    part = _term(reader, place)
    if reader.peek() in ("+", "|"):
        reader.fail("only one engine is allowed here; set servers and trainer together in allocation_mode")
    _end(reader)
    return part


def _term(reader: Scanner, place: _AllowedTerms) -> BackendSpec:
    reader.peek()
    start = reader.at
    if place.sizes_alone and reader.at_hybrid():
        return reader.hybrid(None)
    word = reader.word()
    separator = reader.peek()
    if separator == "[":
        reader.fail(f"named parts are not supported: write {word or 'fsdp'}:d4; ref and critic have a backend key each")
    if not word:
        reader.fail(str(place))
    if separator not in (":", ".") and _starts_sizes(word):
        if not place.sizes_alone:
            reader.fail(f"sizes need an engine here: {place.engines[0]}:{word}. {str(place).capitalize()}", at=start)
        reader.at = start
        return BackendSpec(dims=reader.sizes("dtpce", "a trainer"))
    if word not in place.engines:
        reader.fail(_unknown(word, place), at=start)
    if separator not in (":", "."):
        reader.fail(f"'{word}' needs sizes here, such as {word}:d4")
    reader.at += 1
    if word in engine_names():
        return BackendSpec(word, reader.sizes("dtp", "a server"))
    return reader.hybrid(word) if reader.at_hybrid() else BackendSpec(word, reader.sizes("dtpce", "a trainer"))


def _starts_sizes(word: str) -> bool:
    return bool(re.match(r"[A-Za-z][-0-9]|[dtpce0-9]+$", word))


def _end(reader: Scanner, other: str = "") -> None:
    left = reader.peek()
    if left and left in "+|":
        reader.fail(
            "there is one part for servers and one for trainers; set ref and critic in ref.backend and critic.backend"
        )
    if left:
        reader.fail(f"expected a further size, {other}or the end, found {left!r}")


def _unknown(word: str, place: _AllowedTerms) -> str:
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
    near = get_close_matches(word.lower(), [*place.engines, *place.words], n=1)
    return f"'{word}' is not known{f', did you mean {near[0]}?' if near else ';'} {place}"


__all__ = ["AllocationSyntaxError", "parse_mode", "parse_server", "parse_trainer"]
