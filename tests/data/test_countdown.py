"""Countdown: every row can be solved, and answers are evaluated as arithmetic, never as code."""

from fractions import Fraction
from itertools import chain

import pytest

from areal_like.data.arithmetic import NotArithmetic, evaluate
from areal_like.data.tasks import TEST, TRAIN
from areal_like.data.tasks.countdown import Countdown, countdown_reward
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder

NUMBERS, TARGET = [3, 4, 5], 17


@pytest.mark.parametrize("made", [Countdown(), Countdown(num_numbers=5, max_number=99, num_rows=300)])
def test_the_answer_of_every_row_is_right(made):
    for row in chain(made.rows(TRAIN)[:200], made.rows(TEST)[:50]):
        assert row["prompt"] == f"{' '.join(map(str, row['numbers']))} -> {row['target']}:"
        assert row["numbers"] == sorted(row["numbers"]) and len(row["numbers"]) == made.num_numbers
        rewards = [countdown_reward("", row[name], row["numbers"], row["target"]) for name in ("answer", "rejected")]
        assert rewards[0] == {"valid": 0.2, "right": 0.8, "score": 1.0}
        assert isinstance(rewards[1], dict) and rewards[1]["score"] == 0


def test_the_rows_never_change():
    """The split never changes, or training rows would become test rows."""
    assert {row["prompt"]: row["answer"] for row in Countdown().rows(TRAIN)[:2]} == ROWS


ROWS = {"4 4 7 -> 44:": "(4+7)*4", "3 5 9 -> 135:": "5*9*3"}


def test_the_built_in_models_tokenizer_and_positions_are_enough():
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    assert max(len(tokenizer.encode(row["prompt"] + row["answer"])) for row in Countdown().rows(TEST)) <= 32


@pytest.mark.parametrize(
    ("completion", "valid", "right"),
    [
        ("3*4+5", 1, 1),
        ("5 + 4 * 3", 1, 1),
        ("5 + 4 \u00d7 3 = 17", 1, 1),
        ("3+4+5", 1, 0),
        ("let me see\n3 * 4 = 12\n3*4 + 5 = 17", 1, 1),
        ("<answer>1</answer> no: <answer> (3*4)+5 </answer> done", 1, 1),
        ("<answer> 3*4+5", 1, 1),
        ("17", 0, 0),
        ("3*4+5+5-5", 0, 0),
        ("34+5", 0, 0),
        ("-3*-4+5", 1, 1),
        ("the answer is 17", 0, 0),
        ("", 0, 0),
        ("\n", 0, 0),
    ],
)
def test_an_answer_uses_each_number_once_and_equals_the_target(completion, valid, right):
    parts = countdown_reward("", completion, NUMBERS, TARGET)
    assert parts == {"valid": 0.2 * valid, "right": 0.8 * right, "score": right}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/3+1/6", Fraction(1, 2)),
        ("2-3-4", -5),
        ("-(2-3)", 1),
        ("8/4/2", 1),
        ("(1+2)*3", 9),
        ("12\u00f74\u22c52\u22121", 5),
    ],
)
def test_arithmetic_is_exact(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "9**9**9**9",
        "7//2",
        "1/0",
        "1/(2-2)",
        "(" * 150,
        "(" * 10_000 + "1" + ")" * 10_000,
        "-" * 199 + "1" + "-",
        "1e9",
        "1.5",
        "0x10",
        "1_000",
        "007",
        "2(3)",
        "(1)(2)",
        "1,2",
        "\u0663",
        "x",
        "+1",
        "9" * 5000,
        "",
    ],
)
def test_anything_else_has_no_value(text):
    with pytest.raises(NotArithmetic):
        evaluate(text)


@pytest.mark.parametrize("argument", [{"num_numbers": 1}, {"max_number": 100}, {"num_rows": True}])
def test_impossible_arguments_are_refused(argument):
    with pytest.raises(ValueError, match=f"{next(iter(argument))} must be a number from"):
        Countdown(**argument)
