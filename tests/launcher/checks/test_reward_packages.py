"""Packages of built-in rewards and tasks: found missing before any process starts."""

import pytest

from areal_like.config.install_command import pip_command
from launcher.checks.packages import built_in_packages
from tests.support.planning import machine_with, plan_of

PARTS = "reward.parts=[{name: exact}, {name: math}]"
BENCHMARK = "evaluator.benchmarks=[{{name: a, {}, freq_steps: 10}}]"


@pytest.mark.parametrize(
    ("words", "key", "package"),
    [
        (("reward.name=math",), "reward.name", "math-verify"),
        (("reward.name=json_schema",), "reward.name", "jsonschema"),
        (("reward.name=null", PARTS), "reward.parts.1.name", "math-verify"),
        (("task=reasoning_gym",), "task.name", "reasoning-gym"),
        ((BENCHMARK.format("id: 'reasoning_gym:chain_sum'"),), "evaluator.benchmarks.0.id", "reasoning-gym"),
        ((BENCHMARK.format("path: reasoning_gym"),), "evaluator.benchmarks.0.path", "reasoning-gym"),
        ((BENCHMARK.format("task: {name: reasoning_gym}"),), "evaluator.benchmarks.0.task.name", "reasoning-gym"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(words, key, package):
    (need,) = [need for need in plan_of("grpo", *words, host=machine_with()).needs if need.key == key]
    assert need.message.endswith(
        f"needs the package {package}, which is not installed; {pip_command(package)} installs it"
    )
    complete = machine_with()._replace(packages=frozenset(built_in_packages()))
    assert plan_of("grpo", *words, host=complete).needs == plan_of("grpo", host=complete).needs


def test_other_rewards_need_no_package():
    plain, exact = (plan_of("grpo", *words, host=machine_with()).needs for words in ((), ("reward.name=exact",)))
    assert plain == exact
