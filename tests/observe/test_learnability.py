"""The verdict on answers: what they leave to learn, and the key to change where that is little."""

import pytest

from areal_like.observe.learnability import GOOD, NONE, WEAK, AnswerFacts, Verdict, judge


def verdict(*groups: str) -> Verdict:
    """Answers as letters: `1` right, `0` wrong, `c` wrong and cut off, `x` without a reward, `m` right and masked."""
    facts = {
        "1": AnswerFacts(1.0, 1.0, False),
        "0": AnswerFacts(0.0, 0.0, False),
        "c": AnswerFacts(0.0, 0.0, True),
        "x": AnswerFacts(None, None, False, votes=False),
        "m": AnswerFacts(1.0, 1.0, True, votes=False),
    }
    return judge([[facts[letter] for letter in group] for group in groups])


@pytest.mark.parametrize(
    ("groups", "signal", "keys"),
    [
        (["1010", "0001", "1111"], GOOD, []),
        (["0000", "0000"], NONE, ["train_dataset.path", "gconfig.n_samples"]),
        (["cccc", "cc0c"], NONE, ["train_dataset.path", "gconfig.n_samples", "gconfig.max_new_tokens"]),
        (["1100", "c10c"], GOOD, ["gconfig.max_new_tokens"]),
        (["10", *["00"] * 4], WEAK, ["train_dataset.path", "gconfig.n_samples"]),
        (["xx", "xx"], NONE, ["reward"]),
        (["1x0"], GOOD, ["reward"]),
        (["m0", "00"], NONE, ["train_dataset.path", "gconfig.n_samples", "gconfig.max_new_tokens"]),
        (["1", "0"], GOOD, []),
        (["0", "0"], NONE, ["train_dataset.path", "gconfig.n_samples"]),
    ],
)
def test_each_verdict_names_the_keys_that_help(groups, signal, keys):
    result = verdict(*groups)
    assert result.signal == signal
    assert [each.key for each in result.advice] == keys
    assert result.text.startswith(signal)
    assert all(f"({key})" in result.text for key in keys)


def test_rows_that_are_solved_want_harder_ones_and_rows_that_are_not_easier_ones():
    assert "harder rows (train_dataset.path)" in verdict("11", "11", "00").text
    assert "easier rows (train_dataset.path)" in verdict("11", "00", "00").text


def test_pass_at_k_and_answers_that_are_cut_off_are_in_the_text_and_the_record():
    result = verdict("1000", "000c")
    assert (result.pass_1, result.pass_k, result.k) == (0.125, 0.5, 4)
    assert "pass@1 0.125, pass@4 0.5, 1 of 8 answers are cut off" in result.text
    assert result.record()["signal"] == GOOD
    assert verdict("xx").pass_1 is None
