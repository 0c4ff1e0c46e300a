"""What a key declares is all there is to it: plan, trainer, help, JSON Schema and reference page follow."""

import pytest

from areal_like.config.checks.config_checks import refuse_config
from areal_like.config.describe.help import help_text
from areal_like.config.describe.json_schema import json_schema
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from docs.make import reference_page
from launcher.plan.build import build_plan
from tests.support.planning import ROOT, machine_with

OWN_CLASS = '''
from areal_like.config.experiment import SFTConfig
from areal_like.config.sections.cluster import ClusterSpecConfig
from areal_like.config.sections.rollout import InferenceEngineConfig
from areal_like.config.fields import config, key, must_follow, no_effect, not_built, section


@config
class Paint:
    """How the run is painted."""

    colour: str = key("red", choices=("red", "green", "blue"), rules=(not_built("{}", "use red", allowed=("green",)),))
    """Colour of the walls."""

    shade: float = key(0.5, gt=0, rules=(no_effect(unless="colour", unless_is=("green",)),))
    """How dark it is."""

    ceiling: float = key("${paint.shade}", rules=(must_follow(),))
    """How dark it is above."""


@config
class PaintedConfig(SFTConfig):
    """Supervised training with a colour."""

    paint: Paint = section(Paint)
    """Its paint."""

    judge: InferenceEngineConfig = section(InferenceEngineConfig)
    """Another engine, which a user's code starts."""

    elsewhere: ClusterSpecConfig = section(ClusterSpecConfig)
    """Where it starts it."""
'''


@pytest.fixture
def painted(tmp_path, monkeypatch):
    """Loads the experiment of a class with two more keys."""
    (tmp_path / "own_paint.py").write_text(OWN_CLASS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *words: load(ROOT / "experiments" / "sft.yaml", words, "own_paint:PaintedConfig")


def plan(loaded):
    return build_plan(loaded, host=machine_with())


def test_a_value_that_a_key_refuses_is_refused_by_plan_and_trainer_alike(painted):
    refused = painted("paint.colour=blue")
    (problem,) = plan(refused).cannot_start
    assert problem.text() == "paint.colour [override paint.colour=blue]: blue is not built yet; use red"
    with pytest.raises(ConfigError, match=r"paint\.colour: blue is not built yet; use red"):
        refuse_config(refused.config)
    for word in ("paint.colour=red", "paint.colour=green"):
        assert plan(painted(word)).cannot_start == ()


def test_a_value_without_effect_is_a_warning_that_names_the_other_key(painted):
    warning = "paint.shade: has no effect: paint.colour is red"
    assert warning in plan(painted("paint.shade=0.1")).warnings
    for words in (("paint.shade=0.1", "paint.colour=green"), ("paint.shade=0.5",), ()):
        assert not [each for each in plan(painted(*words)).warnings if each.startswith("paint.")]


def test_a_key_that_must_follow_another_takes_no_other_value(painted, tmp_path):
    with pytest.raises(
        ConfigError, match=r"is 0\.1, but paint\.shade is 0\.5; they must agree: leave paint\.ceiling out"
    ):
        painted("paint.ceiling=0.1")
    file = tmp_path / "painted.yaml"
    file.write_text("defaults: [sft, _self_]\npaint: {shade: 0.2, ceiling: 0.2}\n", encoding="utf-8")
    followed = load(file, ["paint.shade=0.3"], "own_paint:PaintedConfig").config.paint
    assert (followed.shade, followed.ceiling) == (0.3, 0.3)


def test_rules_are_not_those_of_a_section_that_only_user_code_reads(painted):
    own = plan(painted("judge.experiment_name=another", "judge.server_type=embedded", "elsewhere.cluster_name=x"))
    assert own.cannot_start == () and not [each for each in own.warnings if each.startswith("elsewhere")]


def test_a_declared_key_is_in_help_schema_and_reference_page(painted, monkeypatch):
    schema = Schema.of(painted().cls)
    colour = "Colour of the walls. A start refuses `blue`: it is not built yet; use red."
    shade = "How dark it is. No effect unless `colour` is `green`."
    ceiling = "How dark it is above. Another value than that of `paint.shade` is refused."
    assert f"    {ceiling}" in help_text("paint.ceiling", [schema], width=200)
    assert f"    {colour}" in help_text("paint.colour", [schema], width=200)
    assert f"    {shade}" in help_text("paint", [schema], width=200)
    paint = json_schema([schema])["properties"]["paint"]["anyOf"][0]["properties"]
    assert (paint["colour"]["description"], paint["shade"]["description"]) == (colour, shade)
    monkeypatch.setitem(EXPERIMENTS, "sft", painted().cls)
    for cached in (reference_page._places, reference_page._classes):
        monkeypatch.setattr(reference_page, cached.__name__, cached.__wrapped__)
    page = reference_page.render()
    assert f"| `paint.colour` | one of red, green, blue | `red` | {colour} |" in page
    assert f"| `paint.shade` | a number > 0 | `0.5` | {shade} |" in page
