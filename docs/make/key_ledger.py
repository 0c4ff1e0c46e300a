"""The ledger of keys: a row for every key of AReaL and prime-rl, with its place in our tree and its state.

The state follows from the markers of the tests (`key_markers`), the refused keys and a few tables (`key_tables`).
"""

from functools import cache
from typing import Any, NamedTuple

from areal_like.config.dialects.prime_rl.keys import PATHS
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.fields import NOT_YET
from areal_like.config.problems import Stage
from areal_like.config.schema import Schema
from docs.make.key_homes import DIALECT, PRIME_EXPERIMENTS, VERBS, Home, areal_homes, seed_class, seed_keys
from docs.make.key_markers import shown
from docs.make.key_tables import GPU_SEEN, NOTES, PENDING, SAME_AS

LIVE, OURS, SAME, NO_EFFECT, UNSHOWN, REFUSED = STATES = ("live", "ours", "same as", "no effect", "pending", "refused")
SECTION = "section"
"""What a row is that holds keys of its own; it is not counted."""
SOURCES = ("areal", "prime_rl", "prime_hosted", "prime_cli", "prime_config_rules")
Counts = dict[str, dict[str, tuple[int, int]]]
"""source -> state -> number of rows, number of distinct keys; with a `total` at the end."""


class Row(NamedTuple):
    """One key of another framework."""

    source: str
    group: str
    """Title of its class (areal) or its file (prime_rl); empty for the others."""
    key: str
    homes: tuple[Home, ...]
    state: str
    tests: tuple[str, ...] = ()
    """Names of the tests that show it at its homes."""
    reason: str = ""
    """Why it is refused and what to write instead, the key that it must equal, or what is missing."""
    gpu_seen: str = ""
    """Where the effect needs a GPU: the date on which it was last seen on one, or never."""
    note: str = ""

    @property
    def origin(self) -> str:
        """How pages and messages name it, for example `areal PPOActor eps_clip`."""
        group = self.group.removesuffix(" Configuration").removesuffix(" Specification")
        return " ".join(part for part in (self.source, group, self.key) if part)


@cache
def rows() -> tuple[Row, ...]:
    """Every key, in the order of the seed."""
    seed: dict[str, Any] = seed_keys()
    areal = [
        Row("areal", title, key, areal_homes()[title, key], SECTION)
        if seed_class(entry["type"])
        else _row("areal", title, key, areal_homes()[title, key])
        for title, keys in seed["areal"].items()
        for key, entry in keys.items()
    ]
    prime = [
        _row(source, group, key, (Home(paths[key], PRIME_EXPERIMENTS),))
        for (source, group), paths in PATHS.items()
        for key in (seed[source][group] if group else seed[source])
    ]
    commands = [_row("prime_cli", "", command, (Home(VERBS[command]),)) for command in seed["prime_cli"]]
    rules = [_row("prime_config_rules", "", rule, (Home(DIALECT),)) for rule in seed["prime_config_rules"]]
    return (*areal, *prime, *commands, *rules)


def _row(source: str, group: str, key: str, homes: tuple[Home, ...]) -> Row:
    identity = (source, group, key)
    paths = [home.path for home in homes]
    gpu_seen, note = GPU_SEEN.get(identity, ""), NOTES.get(identity, "")
    state, reason = _state(source, paths)
    if identity in PENDING:
        state, reason = UNSHOWN, PENDING[identity]
    tests = () if state in (UNSHOWN, REFUSED) else tuple(dict.fromkeys(test for path in paths for test in _tests(path)))
    return Row(source, group, key, homes, state, tests, reason, gpu_seen, note)


def _tests(path: str) -> tuple[str, ...]:
    return shown().effect.get(path) or shown().no_effect.get(path, ())


@cache
def refused() -> dict[str, str]:
    """Key -> why a start refuses every value but its default, whatever will be built."""
    return {
        entry.path: rule.reason
        for cls in EXPERIMENTS.values()
        for entry, rule in Schema.of(cls).rules
        if rule.stage is Stage.CANNOT_START and not rule.kinds and NOT_YET not in rule.reason
    }


def _state(source: str, paths: list[str]) -> tuple[str, str]:
    """The state of a key with these homes, and the reason for it where it needs one."""
    if reason := refused().get(paths[0]):
        return REFUSED, reason
    if not all(_tests(path) for path in paths):
        return UNSHOWN, ""
    with_effect = [path for path in paths if path in shown().effect]
    if not with_effect:
        return NO_EFFECT, ""
    if all(path in SAME_AS for path in with_effect):
        return SAME, " and ".join(f"`{fact}`" for fact in dict.fromkeys(SAME_AS[path] for path in with_effect))
    return (LIVE if source == "areal" else OURS), ""


def required() -> dict[str, tuple[str, ...]]:
    """Dotted key -> the rows that are in their state because a test shows it."""
    table: dict[str, tuple[str, ...]] = {}
    for row in rows():
        for home in row.homes if row.tests else ():
            table[home.path] = (*table.get(home.path, ()), row.origin)
    return table


def counts() -> Counts:
    """Sections are not counted. Rows of one source with the same homes are one distinct key."""
    table = {source: dict.fromkeys(STATES, (0, 0)) for source in (*SOURCES, "total")}
    distinct: dict[tuple[str, object], str] = {}
    for row in rows():
        if row.state == SECTION:
            continue
        for source in (row.source, "total"):
            number, keys = table[source][row.state]
            table[source][row.state] = (number + 1, keys)
        homes = row.key if row.homes[0].path == DIALECT else tuple(home.path for home in row.homes)
        best = distinct.get((row.source, homes), row.state)
        distinct[row.source, homes] = min(best, row.state, key=STATES.index)
    for (source, _), state in distinct.items():
        for counted in (source, "total"):
            number, keys = table[counted][state]
            table[counted][state] = (number, keys + 1)
    return table
