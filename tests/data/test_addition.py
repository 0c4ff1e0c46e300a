"""The addition task: all pairs in a fixed split, and rewards."""

import pytest

from areal_like.data.tasks.addition import Addition, addition_reward, split_of_sum


def test_all_pairs_are_in_one_of_the_two_splits_and_none_in_both():
    task = Addition()
    train, test = ([row["prompt"] for row in task.rows(split)] for split in ("train", "test"))
    assert len(train) + len(test) == 10000
    assert not set(train) & set(test)
    assert set(train) | set(test) == {f"{a:02}+{b:02}=" for a in range(100) for b in range(100)}
    assert len(train) / 10000 == pytest.approx(0.8, abs=0.01)


def test_the_split_of_a_pair_never_changes():
    """The split never changes, or training rows would become test rows."""
    splits = [split_of_sum(a, b, 2) for a, b in [(0, 0), (0, 7), (12, 34), (34, 12), (50, 50), (99, 97), (99, 99)]]
    assert splits == ["train", "train", "train", "test", "train", "test", "train"]
    assert (len(Addition().rows("train")), len(Addition(1).rows("train"))) == (8036, 78)


@pytest.mark.parametrize(
    ("digits", "pair", "prompt", "answer"),
    [(1, 10, "1+0=", "01"), (2, 1234, "12+34=", "046"), (3, 1, "000+001=", "0001")],
)
def test_numbers_have_the_configured_digits(digits, pair, prompt, answer):
    row = Addition(digits).row(pair)
    assert (row["prompt"], row["answer"]) == (prompt, answer)
    assert len(row["rejected"]) == len(answer)


@pytest.mark.parametrize("digits", [0, 4, 2.0, "2", True])
def test_invalid_digit_counts_are_refused(digits):
    with pytest.raises(ValueError, match="digits must be 1, 2 or 3"):
        Addition(digits)


@pytest.mark.parametrize(
    ("completion", "digits", "exact"),
    [
        ("046", 0.3, 1.0),
        ("047", 0.2, 0.0),
        ("146", 0.2, 0.0),
        ("640", 0.1, 0.0),
        ("46", 0.0, 0.0),
        ("0", 0.1, 0.0),
        ("", 0.0, 0.0),
        ("046046", 0.15, 0.0),
    ],
)
def test_partial_reward_for_correct_digits_and_full_for_the_answer(completion, digits, exact):
    parts = addition_reward("12+34=", completion, "046")
    assert parts == {"digits": pytest.approx(digits), "exact": pytest.approx(0.7 * exact), "score": exact}
