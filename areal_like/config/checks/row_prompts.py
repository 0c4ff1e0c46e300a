"""Templates of prompts, and how answers are found."""

from collections.abc import Callable, Iterator
from typing import Any

from areal_like.config.problems import Problem
from areal_like.config.prompt_template import parse_template
from areal_like.config.sections.data import ROW_LISTS

OF_CHOICES = ("index", "letter", "text")
SECTIONS = ("train_dataset", "valid_dataset")


def prompt_templates(get: Callable[[str], Any]) -> Iterator[Problem]:
    for path, template in _own_values(get, "prompt_template"):
        try:
            parse_template(template)
        except ValueError as fault:
            yield Problem(path, f"{template!r:.60} is not a template: {fault}")


def answer_sources(get: Callable[[str], Any]) -> Iterator[Problem]:
    for path, source in _own_values(get, "answer_from"):
        choices = path.replace("answer_from", "multiple_choice")
        if source in OF_CHOICES and not get(choices):
            yield Problem(path, f"is {source}, which is one of several choices; set {choices} to their column")
        elif source not in OF_CHOICES and get(choices):
            ways = ", ".join(OF_CHOICES)
            yield Problem(
                path, f"is {source}, but with {choices} an answer is one of {ways}; leave it out", also=(choices,)
            )


def _own_values(get: Callable[[str], Any], name: str) -> Iterator[tuple[str, Any]]:
    """The values of a key of all datasets, each once: that of `valid_dataset` follows that of `train_dataset`."""
    found: dict[Any, str] = {}
    items = [f"{place}.{index}" for place in ROW_LISTS for index in range(len(get(place) or ()))]
    for section in (*SECTIONS, *items):
        if (value := get(f"{section}.{name}")) is not None:
            found.setdefault(value, f"{section}.{name}")
    yield from ((path, value) for value, path in found.items())
