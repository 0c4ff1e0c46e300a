"""What a judge needs is missed before any process starts."""

import pytest

from tests.support.planning import machine_with, plan_of

JUDGE = ("reward.name=judge", "+reward.args.model=m")


@pytest.mark.parametrize(
    ("words", "key", "message"),
    [
        (
            ("+reward.args.url=https://judge.org/v1", "+reward.args.api_key_var=NO_SUCH_KEY"),
            "api_key_var",
            "is not set;",
        ),
        (("+reward.args.url=judge.org",), "url", "is not an address; write it with http or https"),
        (("+reward.args.url='http://me:secret@judge.org/v1'",), "url", "contains credentials"),
    ],
)
def test_a_key_or_address_that_cannot_be_used_is_reported(words, key, message):
    plan = plan_of("grpo", *JUDGE, *words, host=machine_with())
    (found,) = [problem for problem in plan.problems if problem.key == f"reward.args.{key}"]
    assert message in found.message


def test_a_judge_with_its_key_can_be_planned(tmp_path, monkeypatch):
    words = (*JUDGE, "+reward.args.url=https://judge.org/v1", "+reward.args.api_key_var=MY_JUDGE")
    monkeypatch.setenv("MY_JUDGE", "k")
    assert not [each for each in plan_of("grpo", *words, host=machine_with()).problems if "reward" in each.key]
