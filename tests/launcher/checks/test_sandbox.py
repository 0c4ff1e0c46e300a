"""A run whose reward runs programs of answers is refused where its sandbox does not work."""

import pytest

from tests.support.planning import machine_with, plan_of

PARTS = "reward.parts=[{name: exact}, {name: code}]"
OWN = """
def run(prompt, completion):
    return 1.0

class Own:
    def rows(self, split):
        return [{"prompt": "1"}]
    def reward(self, prompt, completion):
        return 1.0
"""
BROKEN = machine_with()._replace(why_no_sandbox=lambda kind: f"{kind} is broken")


@pytest.mark.parametrize(
    ("words", "key"), [(("reward.name=code",), "reward.name"), (("reward.name=null", PARTS), "reward.parts.1.name")]
)
@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("bubblewrap", "reward.sandbox=rlimits, the weaker one,"), ("rlimits", "reward.sandbox=bubblewrap")],
)
def test_a_sandbox_that_does_not_work_is_missing(words, key, kind, remedy):
    (need,) = [each for each in plan_of("grpo", *words, f"reward.sandbox={kind}", host=BROKEN).needs if each.key == key]
    message = (
        f"code runs programs of answers in a sandbox: {kind} is broken; {remedy} has other needs (docs/sandbox.md)"
    )
    assert need.message == message


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("from areal_like import Sandbox\nBOX = Sandbox()", True),
        ("import areal_like as a\ndef box():\n    return a.Sandbox(a.SandboxLimits(wall_s=1))", True),
        ("from areal_like import Sandbox\nBOX = Sandbox(kind='rlimits')", False),
        ("from areal_like import SandboxLimits", False),
    ],
)
@pytest.mark.parametrize("key", ["reward.name", "task.name"])
def test_a_reward_of_the_user_that_makes_one_needs_it_too(tmp_path, monkeypatch, source, is_refused, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(f"{source}\n{OWN}")
    words = [f"{key}=own.py:{'run' if key == 'reward.name' else 'Own'}"]
    words += ["reward.name=null", "train_dataset.path=", "valid_dataset=null"] if key == "task.name" else []
    needs = [each for each in plan_of("grpo", *words, host=BROKEN).needs if "broken" in each.message]
    assert [each.key for each in needs] == [key] * is_refused


COUNTDOWN = "task.args={dataset: countdown}"
ENVIRONMENT = ["task.name=null", "reward.name=null", "train_dataset.path=", "valid_dataset=null"]
GYM = ["task=reasoning_gym", "reward.name=null"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([*GYM, COUNTDOWN], "task.name"),
        ([*GYM, "task.args={dataset: chain_sum}"], None),
        ([*GYM[:1], COUNTDOWN, "reward.name=numeric"], None),
        ([*ENVIRONMENT, "environments.train=[{id: reasoning_gym:puzzle24}]"], "environments.train.0.id"),
        (["evaluator.benchmarks=[{name: a, id: reasoning_gym:n_queens}]"], "evaluator.benchmarks.0.id"),
    ],
)
def test_a_scorer_that_evaluates_answers_needs_it_too(words, key):
    pytest.importorskip("reasoning_gym")
    needs = [each for each in plan_of("grpo", *words, host=BROKEN).needs if "broken" in each.message]
    assert [each.key for each in needs] == [key] * (key is not None)
    assert all("evaluates answers in a sandbox: bubblewrap is broken" in each.message for each in needs)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["workflow.name=tool_integrated"], "bubblewrap"),
        (["workflow.name=tools", "+workflow.args.tools=[python]", "reward.sandbox=rlimits"], "rlimits"),
        (["workflow.name=tools", "+workflow.args.tools=[python]", "+workflow.args.sandbox=rlimits"], "rlimits"),
    ],
)
def test_a_workflow_that_runs_programs_needs_the_sandbox_of_rewards_or_its_own(words, kind):
    (need,) = [each for each in plan_of("grpo", *words, host=BROKEN).needs if "broken" in each.message]
    assert need.key == "workflow.name" and f"in a sandbox: {kind} is broken" in need.message


def test_an_unknown_kind_of_sandbox_is_refused_before_the_start():
    needs = plan_of("grpo", "workflow.name=tool_integrated", "+workflow.args.sandbox=box", host=BROKEN).needs
    (need,) = [each for each in needs if each.key == "workflow.args.sandbox"]
    assert need.message == "'box' is no kind of sandbox; there are bubblewrap, rlimits"


def _benchmark(reward):
    return f"evaluator.benchmarks=[{{name: programs, path: addition, reward: {reward}}}]"


@pytest.mark.parametrize(
    ("reward", "other"), [("{name: code}", "rlimits"), ("{name: code, sandbox: rlimits}", "bubblewrap")]
)
def test_that_of_a_benchmarks_reward_is_tried_too(reward, other):
    (need,) = [each for each in plan_of("grpo", _benchmark(reward), host=BROKEN).needs if "broken" in each.message]
    assert need.key == "evaluator.benchmarks.0.reward.name"
    assert f"evaluator.benchmarks.0.reward.sandbox={other}" in need.message


@pytest.mark.parametrize(
    ("words", "host"),
    [
        (("reward.name=code",), machine_with()),
        (("reward.name=exact",), BROKEN),
        (("reward.name=code", "cluster.type=slurm"), BROKEN),
    ],
    ids=["works", "another reward", "other machines"],
)
def test_a_sandbox_that_works_or_is_not_used_here_is_not_missing(words, host):
    assert not [need for need in plan_of("grpo", *words, host=host).needs if "sandbox" in need.message]


def test_the_plan_lists_what_the_weaker_sandbox_does_not_hold():
    warned = {kind: _weaknesses(f"reward.sandbox={kind}") for kind in ("bubblewrap", "rlimits")}
    assert warned["bubblewrap"] == []
    assert any("share the machine's namespaces" in weakness for weakness in warned["rlimits"])


def test_the_plan_lists_it_for_a_benchmark_unless_the_run_has_the_same():
    key, weaker = "evaluator.benchmarks.0.reward.sandbox", _benchmark("{name: code, sandbox: rlimits}")
    assert _weaknesses(weaker, key=key) and not _weaknesses(weaker)
    assert _weaknesses(weaker, "reward.sandbox=rlimits") and not _weaknesses(weaker, "reward.sandbox=rlimits", key=key)


def _weaknesses(*words, key="reward.sandbox"):
    return [each for each in plan_of("grpo", *words).warnings if each.startswith(f"{key}: ")]
