"""Arguments and results of reward functions."""

import functools
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.rollout.episodes.rewards.base import RewardCall, parse_reward

ROW = {"prompt": "12+34=", "answer": "046", "level": 2}


def everything(prompt, completion, **row) -> Any:
    return prompt, completion, row


def by_position(question, answer, level, scale=1.0) -> Any:
    return question, answer, level, scale


async def waits(prompt, completion):
    return 1.0


class Judge:
    async def __call__(self, prompt, completion):
        return 1.0


@pytest.mark.parametrize(
    ("function", "args", "returned"),
    [
        (everything, {}, ("12+34=", "x", {"answer": "046", "level": 2})),
        (everything, {"level": 3, "more": 1}, ("12+34=", "x", {"answer": "046", "level": 3, "more": 1})),
        (by_position, {}, ("12+34=", "x", 2, 1.0)),
        (by_position, {"scale": 2.0, "level": 5}, ("12+34=", "x", 5, 2.0)),
        (lambda prompt, completion: (prompt, completion), {}, ("12+34=", "x")),
        (lambda *arguments: arguments, {}, ("12+34=", "x")),
    ],
)
def test_a_function_gets_the_row_values_of_its_parameters(function, args, returned):
    assert RewardCall(function, "f", args)("12+34=", "x", ROW) == returned


def test_the_needed_row_values_are_known_before_the_first_call():
    assert RewardCall(by_position, "f", {}).needs == ["level"]
    assert RewardCall(by_position, "f", {"level": 1}).needs == []
    assert RewardCall(everything, "f", {}).needs == []


def test_async_functions_are_recognized():
    functions: list[Any] = [waits, Judge(), functools.partial(waits), everything]
    assert [RewardCall(function, "f", {}).is_async for function in functions] == [True, True, True, False]


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (
            by_position,
            {"scal": 1},
            "reward.args: f takes no argument 'scal'; besides prompt and answer, it takes",
        ),
        (waits, {"x": 1}, "reward.args: f takes no argument 'x'; besides prompt and answer, it takes none"),
        (lambda prompt: 1.0, {}, "reward.name: f cannot be called as f(prompt, completion)"),
    ],
)
def test_a_function_with_unsuitable_parameters_is_refused(function, args, message):
    with pytest.raises(ConfigError) as caught:
        RewardCall(function, "f", args)
    assert str(caught.value).startswith(message)


def test_a_number_is_a_reward_without_parts():
    numpy = pytest.importorskip("numpy")
    assert parse_reward(0.5) == parse_reward(numpy.float32(0.5)) == parse_reward(numpy.array(0.5))
    assert (parse_reward(True).value, parse_reward(2).parts) == (1.0, {})
    assert f"{parse_reward(-0.0).value:g} {parse_reward({'length': -0.0}).parts['length']:g}" == "0 0"


def test_named_parts_add_up_and_the_score_does_not():
    reward = parse_reward({"digits": 0.1, "exact": 0.2, "score": 1.0})
    assert reward.value == pytest.approx(0.3)
    assert reward.parts == {"digits": 0.1, "exact": 0.2, "score": 1.0}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (float("nan"), "it returned nan; a reward is a finite number"),
        (float("-inf"), "it returned -inf"),
        (1e300, "it returned 1e+300; a reward is a number of at most 1e+15"),
        (None, "it returned None (NoneType); a reward is a number"),
        ("1.0", "it returned '1.0' (str)"),
        ([1.0], "it returned [1.0] (list)"),
        (1j, "it returned 1j (complex)"),
        ({"a": 1.0, "b": None}, "its part 'b' is None"),
        ({"a": float("inf")}, "its part 'a' is inf"),
        ({"a": 1.0, "score": float("nan")}, "its part 'score' is nan"),
        ({}, "a dict with nothing"),
        ({"score": 1.0}, "only 'score', which is not added to the reward"),
    ],
)
def test_a_value_that_is_not_a_reward_is_an_error(returned, message):
    with pytest.raises(ValueError) as caught:
        parse_reward(returned)
    assert message in str(caught.value)
