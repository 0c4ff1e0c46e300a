"""The promise ledger: one row for every seed key, saying where it stands in our tree and how far it is.

A key is **live** when a test shows what it does, **pending** until then, and **refused** where it will never mean
anything here. Nothing reads this while a configuration is composed.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from areal_like.config.promises import prime as promise_prime
from areal_like.config.promises.homes import Home, areal_homes, seed_class, seed_keys
from areal_like.config.promises.states import GPU_SEEN, NOTES, REFUSED, tests_of

STATES = ("live", "pending", "refused")
SOURCES = ("areal", "prime_rl", "prime_hosted", "prime_cli", "prime_config_rules")


class Promise(NamedTuple):
    """One seed key."""

    source: str
    group: str
    """Title of its class (areal) or its file (prime_rl); empty for the others."""
    key: str
    homes: tuple[Home, ...]
    state: str = "pending"
    tests: tuple[str, ...] = ()
    """Node ids of the tests that show what it does; only for live keys."""
    reason: str = ""
    """Why it is refused, and what to write instead."""
    gpu_seen: str = ""
    """Where the effect needs a GPU: the date on which it was last seen on one, or never."""
    note: str = ""
    is_section: bool = False
    """True where the key holds a section: its state is then that of the keys below."""

    @property
    def origin(self) -> str:
        """How the page and the messages name it, for example `areal PPOActor eps_clip`."""
        group = self.group.removesuffix(" Configuration").removesuffix(" Specification")
        return " ".join(part for part in (self.source, group, self.key) if part)


Place = tuple[str, str, str, tuple[Home, ...]]
"""Source, group, key and homes of a seed key that holds a value."""


@cache
def rows() -> tuple[Promise, ...]:
    """Every seed key, in the order of the seed."""
    areal = (_areal_row(title, key) for title, keys in seed_keys()["areal"].items() for key in keys)
    return (*areal, *(_row(*place) for place in _prime_places()))


@cache
def _row(source: str, group: str, key: str, homes: tuple[Home, ...]) -> Promise:
    identity = (source, group, key)
    reason = REFUSED.get(identity, "")
    tests = () if reason else tests_of(source, homes)
    state = "refused" if reason else "live" if tests else "pending"
    return Promise(source, group, key, homes, state, tests, reason, GPU_SEEN.get(identity, ""), NOTES.get(identity, ""))


@cache
def _areal_row(title: str, key: str) -> Promise:
    classes, homes = seed_keys()["areal"], areal_homes()[title, key]
    below = seed_class(classes[title][key]["type"])
    if below is None:
        return _row("areal", title, key, homes)
    return _section_row(title, key, homes, [_areal_row(below, name) for name in classes[below]])


def _section_row(title: str, key: str, homes: tuple[Home, ...], below: list[Promise]) -> Promise:
    """A section is live when everything in it is (refused keys aside), and refused when everything in it is."""
    states = {promise.state for promise in below}
    state = "pending" if "pending" in states else "live" if "live" in states else "refused"
    tests = tuple(dict.fromkeys(test for promise in below for test in promise.tests)) if state == "live" else ()
    reason = "every key in it is refused" if state == "refused" else ""
    return Promise("areal", title, key, homes, state, tests, reason, is_section=True)


def _areal_places() -> Iterator[Place]:
    homes = areal_homes()
    for title, keys in seed_keys()["areal"].items():
        for key, row in keys.items():
            if seed_class(row["type"]) is None:
                yield "areal", title, key, homes[title, key]


def _prime_places() -> Iterator[Place]:
    seed: dict[str, Any] = seed_keys()
    for (source, group), paths in promise_prime.PATHS.items():
        for key in seed[source][group] if group else seed[source]:
            yield source, group, key, (Home(paths[key], promise_prime.EXPERIMENTS),)
    for command in seed["prime_cli"]:
        yield "prime_cli", "", command, (Home(promise_prime.VERBS[command]),)
    for rule in seed["prime_config_rules"]:
        yield "prime_config_rules", "", rule, (Home(promise_prime.DIALECT),)


@cache
def _places() -> dict[str, tuple[Place, ...]]:
    """By the path of a home. Their rows are made when they are asked for: a plan asks for few."""
    found: dict[str, tuple[Place, ...]] = {}
    for place in (*_areal_places(), *_prime_places()):
        for home in place[-1]:
            found[home.path] = (*found.get(home.path, ()), place)
    return found


def at(path: str) -> Promise | None:
    """The row that decides whether a value at this dotted path can be honoured; None where no seed key stands.

    Several seed keys may share a home: one that is live there makes the home live. Items of a list count as one
    place (`environments.train[0].id`), and so do the entries of a map (`stats_logger.wandb.config.team`).
    """
    path = re.sub(r"\[\d*\]|\.\d+(?=\.|$)", "[]", path)
    while path:
        places = _places().get(path)
        if places:
            return min((_row(*place) for place in places), key=lambda promise: STATES.index(promise.state))
        path = path.rpartition(".")[0]
    return None


def live_tests() -> dict[str, tuple[str, ...]]:
    """Node id of a test -> the seed keys that it keeps live."""
    found: dict[str, tuple[str, ...]] = {}
    for promise in rows():
        for test in promise.tests:
            found[test] = (*found.get(test, ()), promise.origin)
    return found


def counts() -> dict[str, dict[str, int]]:
    """source -> state -> number of seed keys, with a `total` at the end."""
    table = {source: dict.fromkeys(STATES, 0) for source in (*SOURCES, "total")}
    for promise in rows():
        table[promise.source][promise.state] += 1
        table["total"][promise.state] += 1
    return table


def summary_text() -> str:
    """The counts as a table for the terminal, in its last line the sentence that matters."""
    lines = [f"{'origin':<20}" + "".join(f"{state:>9}" for state in (*STATES, "all"))]
    for source, by_state in counts().items():
        numbers = [*by_state.values(), sum(by_state.values())]
        lines.append(f"{source:<20}" + "".join(f"{number:>9}" for number in numbers))
    total = counts()["total"]
    lines.append(f"{total['live']} of {sum(total.values())} keys are live: docs/keys.md names the test of each.")
    return "\n".join(lines)
