"""Reads `allocation_mode` and the `.backend` keys. A recursive descent, one function per rule:

    mode    := "auto" | "heuristic" | "" | "manual" | trainer
             | server [("+" | "|") trainer] | server "+" ("eval" | "cpu")
    server  := (embedded|sglang|vllm) (":" | ".") dims              letters d t p
    trainer := [(fsdp|megatron) (":" | ".")] (dims | hybrid)        letters d t p c e

A `.backend` key is "", "auto", a name, or a name with sizes. Only what can be said by looking at the string is said
here; what the sizes mean together is checked elsewhere.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from areal_like.config.allocation.base import SERVERS, TRAINERS, AllocationMode, BackendSpec
from areal_like.config.allocation.scanner import AllocationSyntaxError, Scanner

KEYWORDS: dict[str, Literal["auto", "manual"]] = {"": "auto", "auto": "auto", "heuristic": "auto", "manual": "manual"}
CLIENTS: dict[str, Literal["eval", "cpu"]] = {"eval": "eval", "cpu": "cpu"}
REPLACEMENTS = {
    "archon": "fsdp",
    "deepspeed": "fsdp",
    "torchtitan": "fsdp",
    "hf": "embedded",
    "transformers": "embedded",
}


@dataclass(frozen=True)
class _AllowedTerms:
    """What may stand somewhere: engines, words, and sizes without a name."""

    engines: tuple[str, ...]
    words: tuple[str, ...]
    sizes_alone: bool

    def __str__(self) -> str:
        servers = [name for name in self.engines if name in SERVERS]
        trainers = [name for name in self.engines if name in TRAINERS] + ["sizes alone"] * self.sizes_alone
        roles = [f"servers ({', '.join(servers)})"] if servers else []
        roles += [f"a trainer ({', '.join(trainers)})"] if trainers else []
        return "expected " + " or ".join([*roles, *self.words])


FIRST = _AllowedTerms(SERVERS + TRAINERS, ("auto", "manual"), sizes_alone=True)
AFTER_PLUS = _AllowedTerms(TRAINERS, tuple(CLIENTS), sizes_alone=True)
AFTER_BAR = _AllowedTerms(TRAINERS, (), sizes_alone=True)
SERVER_KEY = _AllowedTerms(SERVERS, ("auto",), sizes_alone=False)
TRAINER_KEY = _AllowedTerms(TRAINERS, ("auto",), sizes_alone=False)


def parse_mode(text: str) -> AllocationMode:
    """What `allocation_mode` says."""
    if text.strip() in KEYWORDS:
        return AllocationMode(keyword=KEYWORDS[text.strip()])
    reader = Scanner(text)
    first = _term(reader, FIRST)
    if first.backend not in SERVERS:
        if reader.peek() in ("+", "|"):
            reader.fail(f"'{first}' trains, so nothing follows it. Servers stand first: sglang:d4+fsdp:d4")
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
    """What `rollout.backend` says: `name[:dims]`, or nothing ("auto")."""
    return _backend(text, SERVER_KEY)


def parse_trainer(text: str) -> BackendSpec:
    """What `actor.backend` and its like say: `name[:dims]`, or nothing ("auto")."""
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
        reader.fail("one engine stands here; servers and trainer together stand in allocation_mode")
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
        reader.fail(f"parts have no names here: write {word or 'fsdp'}:d4; ref and critic have a backend key each")
    if not word:
        reader.fail(str(place))
    if separator not in (":", ".") and _starts_sizes(word):
        if not place.sizes_alone:
            reader.fail(f"sizes need a name here: {place.engines[0]}:{word}. {str(place).capitalize()}", at=start)
        reader.at = start
        return BackendSpec(dims=reader.sizes("dtpce", "a trainer"))
    if word not in place.engines:
        reader.fail(_unknown(word, place), at=start)
    if separator not in (":", "."):
        reader.fail(f"'{word}' needs sizes here, such as {word}:d4")
    reader.at += 1
    if word in SERVERS:
        return BackendSpec(word, reader.sizes("dtp", "a server"))
    return reader.hybrid(word) if reader.at_hybrid() else BackendSpec(word, reader.sizes("dtpce", "a trainer"))


def _starts_sizes(word: str) -> bool:
    return bool(re.match(r"[A-Za-z][-0-9]|[dtpce0-9]+$", word))


def _end(reader: Scanner, other: str = "") -> None:
    left = reader.peek()
    if left and left in "+|":
        reader.fail("one part serves and one trains; sizes of ref and critic stand in ref.backend and critic.backend")
    if left:
        reader.fail(f"expected a further size, {other}or the end, found {left!r}")


def _unknown(word: str, place: _AllowedTerms) -> str:
    if word in SERVERS:
        return f"'{word}' serves and does not train; {place}"
    if word in TRAINERS:
        return f"'{word}' trains and does not serve; {place}"
    if word in KEYWORDS:
        return f"'{word}' stands alone; {place}"
    if word in CLIENTS:
        return f"'{word}' stands only after servers and '+', as in sglang:d4+{word}; {place}"
    stand_in = REPLACEMENTS.get(word.lower())
    if stand_in in place.engines:
        return f"'{word}' is not an engine of this framework, use {stand_in}; {place}"
    near = get_close_matches(word.lower(), [*place.engines, *place.words], n=1)
    return f"'{word}' is not known{f', did you mean {near[0]}?' if near else ';'} {place}"


__all__ = ["AllocationSyntaxError", "parse_mode", "parse_server", "parse_trainer"]
