"""Sums, and the rows by which a start learns to call a calculator."""

from collections import Counter

import pytest

from areal_like.data.tasks import TEST, TRAIN
from areal_like.data.tasks.sums import Sums
from areal_like.rollout.episodes.tools.base import tool_of
from areal_like.rollout.episodes.tools.calculator import calculator
from areal_like.rollout.episodes.tools.call_format import CallFormat


def test_rows_have_the_right_sum_and_their_split_does_not_depend_on_calls() -> None:
    for split in (TRAIN, TEST):
        plain, imitated = (Sums(num_rows=200, calls=calls).rows(split) for calls in (False, True))
        for one, other in zip(plain, imitated, strict=True):
            expression = one["prompt"].removesuffix("=")
            assert one["answer"] == calculator(expression) and other["prompt"].startswith(one["prompt"])


def test_imitated_rows_are_answers_calls_and_results() -> None:
    forms, tools = Counter[str](), {"calculator": tool_of(calculator).arguments}
    for row in Sums(num_rows=400, calls=True).rows(TRAIN):
        calls = CallFormat(name="python").parse(row["answer"], tools)
        if calls:
            assert calculator(**calls[0].arguments) == str(row["total"])
        else:
            assert Sums().reward(row["prompt"], row["answer"], row["total"]) == 1
        forms["call" if calls else "result" if ";" in row["prompt"] else "answer"] += 1
    assert forms["answer"] > 2 * forms["call"] > 0 and forms["result"] > forms["call"]


@pytest.mark.parametrize("digits", [1, 7, True, "3"])
def test_digits_are_checked(digits: object) -> None:
    with pytest.raises(ValueError, match="digits must be a number from 2 to 6"):
        Sums(digits=digits)  # type: ignore[arg-type]
