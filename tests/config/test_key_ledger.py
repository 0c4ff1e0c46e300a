"""The key ledger agrees with the seed keys, the schema and the generated pages."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.checks import sampling as mismatches
from areal_like.config.checks.key_rules import MODELS
from areal_like.config.describe.key_counts import summary_text
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.problems import Stage
from areal_like.config.schema import Key, Schema, Section
from docs.make import key_ledger as ledger
from docs.make import refused_keys
from docs.make.key_homes import OUR_CLASS, SEED_ROOTS, areal_homes, seed_class, seed_keys
from docs.make.key_markers import shown
from docs.make.key_tables import GPU_SEEN, NOTES, PENDING, SAME_AS

ROOT = Path(__file__).parents[2]
KEYS_PAGE = ROOT / "docs" / "keys.md"
DIFFERENCES_PAGE = ROOT / "docs" / "differences.md"
KINDS = {"string": "str", "integer": "int", "float": "float", "boolean": "bool", "`Dict`": "map"}
PRIME_NAMES = {"online-difficulty": "online_difficulty"}
"""Values that the dialect for TOML files writes differently."""


@cache
def schema(experiment: str) -> Schema:
    return Schema(EXPERIMENTS[experiment])


def seed_identities() -> Iterator[tuple[str, str, str]]:
    seed = seed_keys()
    for source in ("areal", "prime_rl"):
        for group, keys in seed[source].items():
            yield from ((source, group, key) for key in keys)
    for source in ("prime_hosted", "prime_cli", "prime_config_rules"):
        yield from ((source, "", key) for key in seed[source])


def test_every_seed_key_has_exactly_one_row() -> None:
    identities = Counter((row.source, row.group, row.key) for row in ledger.rows())
    assert identities == Counter(seed_identities())


def test_origins_are_unique() -> None:
    origins = [row.origin for row in ledger.rows()]
    assert len(set(origins)) == len(origins)
    assert {"areal PPOActor eps_clip", "areal Cluster n_nodes", "prime_rl orch buffer.seed"} < set(origins)


@pytest.mark.parametrize("table", [GPU_SEEN, NOTES, PENDING], ids=["gpu_seen", "notes", "pending"])
def test_remarks_are_about_seed_keys(table: dict[tuple[str, str, str], str]) -> None:
    assert not set(table) - set(seed_identities())


def test_a_row_has_the_fields_of_its_state() -> None:
    for row in ledger.rows():
        assert row.homes, row.origin
        assert bool(row.tests) == (row.state not in (ledger.UNSHOWN, ledger.REFUSED, ledger.SECTION)), row.origin
        assert row.state not in (ledger.SAME, ledger.REFUSED) or row.reason, row.origin
        assert row.state != ledger.LIVE or row.source == "areal", row.origin
        assert row.state != ledger.OURS or row.source != "areal", row.origin
        assert re.fullmatch(r"|never|20\d\d-\d\d-\d\d", row.gpu_seen), row.origin


def test_a_marker_names_a_key_that_exists() -> None:
    paths = {path for name in EXPERIMENTS for path in (*schema(name).keys, *schema(name).sections)}
    assert not {*shown().effect, *shown().no_effect} - paths


def test_no_key_is_shown_with_and_without_effect() -> None:
    assert not set(shown().effect) & set(shown().no_effect)


def test_refused_keys_are_rows_and_shown_by_no_test() -> None:
    assert {home.path for row in ledger.rows() if row.state == ledger.REFUSED for home in row.homes} == set(
        ledger.refused()
    )
    assert not set(ledger.refused()) & {*shown().effect, *shown().no_effect}


def test_a_key_listed_as_same_as_another_names_an_existing_key() -> None:
    for path, fact in SAME_AS.items():
        assert any({path, fact} <= set(schema(name).keys) for name in EXPERIMENTS), path


def test_a_state_follows_from_the_markers() -> None:
    def state(origin: str) -> tuple[str, str]:
        (row,) = [row for row in ledger.rows() if row.origin == origin]
        return row.state, row.reason

    assert state("areal PPOActor eps_clip") == ("live", "")
    assert state("areal Saver experiment_name") == ("same as", "`experiment_name`")
    assert state("areal vLLM swap_space") == ("no effect", "")
    assert state("areal Scheduler endpoint") == ("refused", ledger.refused()["scheduler.endpoint"])
    assert state("prime_rl orch eval.save.env_hub") == ("ours", "")
    assert state("areal PPOActor optimizer") == ("section", "")
    assert state("prime_rl train optim.lr") == ("ours", "")
    assert state("prime_rl train model.tp")[0] == "pending"
    assert state("prime_cli list") == ("pending", "")


def test_counts_add_up() -> None:
    counts = ledger.counts()
    counted = [row for row in ledger.rows() if row.state != ledger.SECTION]
    assert sum(number for number, _ in counts["total"].values()) == len(counted)
    for state in ledger.STATES:
        for figure in (0, 1):
            in_sources = [counts[source][state][figure] for source in ledger.SOURCES]
            assert counts["total"][state][figure] == sum(in_sources)
    # As counted by hand in AReaL's documentation: what the five experiment classes share counts once.
    assert sum(keys for _, keys in counts["areal"].values()) == 290


# Homes


def test_classes_have_the_names_in_the_table() -> None:
    assert set(OUR_CLASS) == set(seed_keys()["areal"])
    for experiment, title in SEED_ROOTS.items():
        assert EXPERIMENTS[experiment].__name__ == OUR_CLASS[title]


def test_every_home_exists() -> None:
    missing = [
        f"{experiment}: {home.path} ({row.origin})"
        for row in ledger.rows()
        for home in row.homes
        for experiment in home.experiments
        if not (home.path in schema(experiment).keys or home.path in schema(experiment).sections)
    ]
    assert not missing, "\n".join(missing)


def test_a_prime_rl_choice_is_a_valid_choice() -> None:
    for row in ledger.rows():
        if row.source not in ("prime_rl", "prime_hosted"):
            continue
        keys = seed_keys()[row.source]
        entry = (keys[row.group] if row.group else keys)[row.key]
        named = [*entry.get("choices", ()), *re.findall(r'"([^"]+)"', entry["type"])]
        ours = schema("grpo").keys.get(row.homes[0].path)
        if ours is not None and ours.choices is not None:
            unknown = [name for name in named if PRIME_NAMES.get(name, name) not in ours.choices]
            assert not unknown, f"{row.origin}: {ours.path} does not know {unknown}"


# Types, choices and defaults of AReaL's keys


def seed_default(row: dict[str, Any]) -> Any:
    """The default as a value; lists and maps that the seed makes by a factory are empty ones."""
    if row["default"] is not None:
        return ast.literal_eval(row["default"])
    return [] if row["type"].startswith("list") else {} if row["type"] == "`Dict`" else None


def section_differences(row: dict[str, Any], ours: Section | Key) -> Iterator[str]:
    title = seed_class(row["type"])
    assert title is not None
    if isinstance(ours, Key):
        yield f"is {ours.kind}, there {row['type']}"
        return
    if OUR_CLASS[title] not in (cls.__name__ for cls in ours.cls.__mro__):
        yield f"is a {ours.cls.__name__}, there a {row['type']}"
    optional = row["type"].endswith(" | None")
    if ours.optional != optional:
        yield f"{'may' if ours.optional else 'cannot'} be null, unlike there"
    if ours.default_null != optional:
        yield "is null by default, unlike there" if ours.default_null else "is there by default, there it is null"


def key_differences(row: dict[str, Any], ours: Section | Key) -> Iterator[str]:
    base = row["type"].removesuffix(" | None")
    optional = base != row["type"]
    if isinstance(ours, Section):
        yield f"is a section, there {row['type']}"
        return
    kind, item = ("list", KINDS[base.removeprefix("list of ")]) if base.startswith("list of ") else (KINDS[base], None)
    item_here = ours.kind.item.name if ours.kind.name == "list" and ours.kind.item is not None else None
    if (ours.kind.name, item_here, ours.kind.optional, ours.kind.auto) != (kind, item, optional, False):
        yield f"is {ours.kind}, there {row['type']}"
    # "None" among AReaL's choices is null, which is our type's business.
    choices = {choice for choice in row.get("choices", ()) if choice != "None"}
    if choices != set(ours.choices or ()):
        yield f"has the choices {ours.choices or 'any'}, there {sorted(choices) or 'any'}"
    has_default = row["default"] is not None or kind in ("list", "map")
    if has_default and ours.constraints.required:
        yield "needs a value, there it has a default"
    elif has_default and ours.default != seed_default(row):
        yield f"is {ours.default!r} by default, there {seed_default(row)!r}"
    elif not has_default and not ours.constraints.required:
        yield f"is {ours.default!r} by default, there it needs a value"


@cache
def differences() -> dict[str, list[str]]:
    """Dotted path -> in what our key differs from AReaL's."""
    by_path: dict[str, list[str]] = {}
    for (title, name), homes in areal_homes().items():
        row = seed_keys()["areal"][title][name]
        compare = key_differences if seed_class(row["type"]) is None else section_differences
        for home in homes:
            for experiment in home.experiments:
                tree = schema(experiment)
                ours = tree.keys.get(home.path) or tree.sections.get(home.path)
                for difference in compare(row, ours) if ours is not None else ():
                    if difference not in by_path.setdefault(home.path, []):
                        by_path[home.path].append(difference)
    return {path: reasons for path, reasons in by_path.items() if reasons}


def first_cells(heading: str) -> list[str]:
    """The first cells, as they are, of the table under a heading of docs/differences.md."""
    _, _, below = DIFFERENCES_PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert below, f"docs/differences.md has no heading {heading!r}"
    lines = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip() for line in lines[1:]]


def listed_differences() -> list[str]:
    return [cell.strip("`") for cell in first_cells("Every key whose default, type or choices differ")]


def test_keys_are_as_in_areal_or_listed_as_different() -> None:
    unlisted = sorted(set(differences()) - set(listed_differences()))
    assert not unlisted, "docs/differences.md does not list:\n" + "\n".join(
        f"`{path}` {'; '.join(differences()[path])}" for path in unlisted
    )


def test_keys_listed_as_different_are_different() -> None:
    listed = listed_differences()
    assert len(set(listed)) == len(listed), "docs/differences.md lists a key twice"
    stale = sorted(set(listed) - set(differences()))
    assert not stale, "docs/differences.md lists what is as in AReaL, or is no key of AReaL's:\n" + "\n".join(stale)


def test_keys_that_behave_differently_are_keys_of_areal() -> None:
    paths = {home.path for homes in areal_homes().values() for home in homes}
    for cell in first_cells("Same key, different behaviour"):
        path = re.split(r"[`: ]", cell.strip("`"), maxsplit=1)[0].removesuffix(".*")
        assert path in paths, f"docs/differences.md: {cell}"


def test_the_page_lists_every_key_that_a_start_may_be_refused_for() -> None:
    """The rest of the table is compared with the checks as a generated page."""
    page = DIFFERENCES_PAGE.read_text(encoding="utf-8")
    listed = set(
        re.findall(r"^\| `([\w.\[\]]+)`", page.partition(refused_keys.BEGIN)[2].partition(refused_keys.END)[0], re.M)
    )
    rules = [pair for cls in EXPERIMENTS.values() for pair in Schema.of(cls).rules]
    declared = [entry.path for entry, rule in rules if rule.stage is Stage.CANNOT_START]
    assert listed == {path.partition(".")[2] if path.partition(".")[0] in MODELS else path for path in declared}
    sampling = {"gconfig.greedy", "top_k", *mismatches.NEUTRAL} - {"greedy"}
    (bullet,) = [
        text for text in page.split("\n- ") if text.startswith("**Sampling that the trainer cannot reproduce**")
    ]
    assert sampling <= set(re.findall(r"`([a-z][\w.]*)", bullet))


# The pages


def test_the_page_of_keys_has_a_row_for_every_key() -> None:
    lines = [line for line in KEYS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    headings = [line for line in lines if line.startswith(("| key |", "| origin |"))]
    assert len(lines) - len(headings) == len(ledger.rows()) + len(ledger.SOURCES) + 1
    for line in lines:
        assert line.replace("\\|", "").count("|") in (5, 9), line


def test_the_verb_prints_the_counts_of_the_page() -> None:
    (all_rows,) = [line for line in KEYS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| All |")]
    cells = ["total", *(cell.strip().replace(" / ", "/") for cell in all_rows.split("|")[2:-1])]
    assert summary_text().splitlines()[-2].split() == [cell if cell != "0" else "0/0" for cell in cells]
