"""Help texts of all keys and sections: present, short, and free of internals."""

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from areal_like.config import engines
from areal_like.config.built_in import BUILT_IN
from areal_like.config.describe.help import help_of, help_text, meaning
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.schema import Key, Schema, Section

LONGEST = 400
SCHEMAS = {kind: Schema.of(cls) for kind, cls in EXPERIMENTS.items()}
INTERNAL = re.compile(
    r"#\d+|\b(?:issues?|pull requests?|PRs?|tickets?|commits?|branch|TODO|FIXME|XXX|HACK|sessions?|seed_keys|helper"
    r"|milestones?|phase \d|roadmap|prototype|refactor\w*|dataclass\w*|OmegaConf|metadata dict|docstrings?)\b"
    r"|areal_like\.|launcher\.plan|tests?/|/work\b|/tmp/|https?://(?:github|gitlab)",
)
"""What only its authors understand: where it was discussed, how it is built, where it stands on their machines."""
SENTENCE_START = re.compile(r"[A-Z0-9`-]|(?:vLLM|torch\.compile)\b")


def entries() -> dict[tuple[str, str], tuple[str, str]]:
    """(class, field) -> (one of its paths, its text)."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for schema in SCHEMAS.values():
        every: list[Key | Section] = [*schema.keys.values(), *schema.sections.values()]
        for entry in every:
            if entry.owner is not None:
                found.setdefault((entry.owner.__name__, entry.name), (entry.path, meaning(entry)))
    return found


TEXTS = entries()


def wrong(judge: re.Pattern[str] | None = None, longest: int | None = None) -> dict[str, str]:
    """The texts that hold what `judge` finds, or are too long."""
    return {
        f"{owner}.{name}": text
        for (owner, name), (_, text) in TEXTS.items()
        if (judge is not None and judge.search(text)) or (longest is not None and len(text) >= longest)
    }


def test_every_key_and_section_has_a_text() -> None:
    assert len(TEXTS) > 300
    assert {f"{owner}.{name}" for (owner, name), (_, text) in TEXTS.items() if not text.strip()} == set()


def test_every_class_has_a_docstring_for_its_section() -> None:
    classes = {section.cls for schema in SCHEMAS.values() for section in schema.sections.values()}
    for cls in classes:
        text = " ".join((cls.__doc__ or "").split())
        assert is_sentence(text), f"{cls.__name__}: {text!r}"
        assert not text.startswith(f"{cls.__name__}("), "a text made by dataclasses, not by a person"
        assert not INTERNAL.search(text)


def is_sentence(text: str) -> bool:
    """It begins as a sentence does, ends with a full stop, and its quotes and brackets are closed."""
    begins = SENTENCE_START.match(text) is not None
    closed = text.count("`") % 2 == 0 and all(
        text.count(left) == text.count(right) for left, right in ("()", "[]", "{}")
    )
    return begins and text.endswith(".") and not text.endswith("..") and closed


def test_every_text_is_a_sentence() -> None:
    assert {name: text for name, (_, text) in TEXTS.items() if not is_sentence(text)} == {}


def test_every_text_is_short() -> None:
    assert wrong(longest=LONGEST) == {}


def test_the_help_of_the_backend_names_every_engine_also_a_users(monkeypatch) -> None:
    monkeypatch.setitem(engines._registered, "plain", replace(engines.default_engine(), name="plain"))
    backend = SCHEMAS["grpo"].keys["rollout.backend"]
    assert all(f"`{name}`" in meaning(backend) for name in engines.engine_names())
    assert "{" not in meaning(backend)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("task.name", "task"), ("workflow.name", "workflow"), ("reward.name", "reward"), ("actor.loss", "actor.loss")],
)
def test_the_help_of_a_name_lists_what_is_built_in(key: str, kind: str, monkeypatch) -> None:
    monkeypatch.setitem(BUILT_IN[kind], "further", "package.module:further")
    text = help_text(key, [SCHEMAS["grpo"]])
    assert [name for name in BUILT_IN[kind] if f"`{name}`" not in text] == []


def test_no_text_mentions_internals() -> None:
    assert wrong(INTERNAL) == {}


def test_no_text_has_blanks_doubled_or_words_twice() -> None:
    assert wrong(re.compile(r"\s{2,}|\b(\w{2,}) \1\b")) == {}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_no_two_keys_of_a_section_have_the_same_text(kind: str) -> None:
    """Two keys that mean the same are one too many; two that do not need words that tell them apart."""
    schema = SCHEMAS[kind]
    by_section: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    every: list[Key | Section] = [*schema.keys.values(), *schema.sections.values()]
    for entry in every:
        if entry.owner is not None and not entry.path.endswith("[]"):
            by_section[entry.path.rpartition(".")[0]][meaning(entry)].append(entry.name)
    doubled = {section: names for section, texts in by_section.items() for names in texts.values() if len(names) > 1}
    assert doubled == {}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_name_that_a_text_mentions_exists(kind: str) -> None:
    """A path in backquotes with a dot in it is a key or a section of some kind of experiment, or a value."""
    known = {name for schema in SCHEMAS.values() for name in schema.names()}
    values = re.compile(r"[\w./-]*[:=/<>{}@ ][\w./:=<>{}@ ,+-]*|[\w-]+\.(?:yaml|py|jsonl?|txt)")
    tops = {name.split(".")[0] for name in known}
    for path, key in SCHEMAS[kind].keys.items():
        for quoted in re.findall(r"`([^`]+)`", meaning(key)):
            if "." not in quoted or values.fullmatch(quoted) or quoted.split(".")[0] not in tops | {path.split(".")[0]}:
                continue
            above = path.replace("[]", "").rpartition(".")[0]
            assert quoted in known or f"{above}.{quoted}" in known, f"{path}: {quoted}"


def test_a_subclass_may_replace_one_help_text_and_inherits_the_rest() -> None:
    inherited, own = help_of(SCHEMAS["ppo"].cls), help_of(SCHEMAS["sft"].cls)
    assert inherited["tokenizer_path"] != own["tokenizer_path"]
    assert inherited["seed"] == own["seed"]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_help_of_every_section_can_be_printed_within_a_terminal(kind: str) -> None:
    schema = SCHEMAS[kind]
    for path in schema.sections:
        if path and "[]" not in path:
            lines = help_text(path, [schema], width=100).splitlines()
            assert lines[0].startswith(f"{path}  (")
            assert [line for line in lines if len(line) > 120 and line.startswith("  ")] == []
