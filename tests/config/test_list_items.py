"""Keys of a list's items: what an override of one replaces, and their help."""

from pathlib import Path

import pytest

from areal_like.config.describe.help import help_text
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.config.schema import Schema
from launcher.commands.explain import explain
from tests.support.planning import plan_of

FILE = """
defaults: [grpo, _self_]
evaluator:
  benchmarks:
  - {name: a, path: addition, num_examples: 5, freq_steps: 3}
  - {name: b, path: addition, freq_steps: 3}
"""
KEY = "evaluator.benchmarks.{}.num_examples"


def loaded(folder: Path, *overrides: str) -> Loaded:
    (folder / "e.yaml").write_text(FILE)
    return load(folder / "e.yaml", overrides)


@pytest.mark.parametrize(
    ("index", "overrides", "lines"),
    [
        (0, (), ["= 5", "from  5  [file: e.yaml:4]"]),
        (
            0,
            ("7",),
            ["= 7", "from  7  [override", "beats 5  [file: e.yaml:4]", "beats -1  [default of BenchmarkConfig"],
        ),
        (0, ("7", "8"), ["= 8", "from  8", "beats 7  [override", "beats 5  [file", "beats -1"]),
        (1, ("7",), ["= 7", "from  7", "beats -1  [default of BenchmarkConfig.num_examples]"]),
        (1, (), ["= -1", "from  -1  [default of BenchmarkConfig.num_examples]"]),
    ],
)
def test_an_override_of_an_item_beats_what_the_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, overrides: tuple[str, ...], lines: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    key = KEY.format(index)
    shown = explain(loaded(tmp_path, *(f"{key}={value}" for value in overrides)), key).splitlines()
    assert len(shown) == len(lines)
    assert all(part in line.replace(f"{tmp_path}/", "") for part, line in zip(lines, shown, strict=True)), shown


def test_the_plan_shows_the_value_that_an_item_had() -> None:
    items = "evaluator.benchmarks=[{name: a, path: addition, num_examples: 5, freq_steps: 3}]"
    settings = {each.key: each for each in plan_of("grpo", items, f"{KEY.format(0)}=7").changed}
    changed = settings[KEY.format(0)]
    assert (changed.value, changed.default, [each.value for each in changed.beaten]) == (7, -1, [5])


@pytest.mark.parametrize("place", ["evaluator.benchmarks.0", "evaluator.benchmarks[]", "evaluator.benchmarks"])
def test_the_help_of_an_item_s_key_is_found_by_its_index(tmp_path: Path, place: str) -> None:
    schema = Schema.of(loaded(tmp_path).cls)
    assert "Number of rows" in help_text(f"{place}.num_examples", [schema])
