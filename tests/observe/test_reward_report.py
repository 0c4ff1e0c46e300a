"""The report on rewards over saved answers."""

from dataclasses import replace

import pytest

from areal_like.observe.reward_report import ScoredAnswer, agreement_report, correlation, oddest, reward_report


def scored(*values: float | None, prompts: str = "", seconds: tuple[float, ...] = ()) -> list[ScoredAnswer]:
    return [
        ScoredAnswer(
            place=f"f:{number + 1}",
            prompt=prompts[number] if prompts else "p",
            completion=f"answer {number + 1}",
            value=value,
            seconds=seconds[number] if seconds else 0.001,
            error="" if value is not None else "it broke",
        )
        for number, value in enumerate(values)
    ]


def test_few_values_are_counted_and_many_are_put_into_ranges():
    few = "\n".join(reward_report("r", scored(0, 1, 1, None)))
    assert "r: 4 answers to 1 prompt, 1 failed" in few
    assert "mean 0.6667" in few
    assert "  0 ████████████ 1\n  1 ████████████████████████ 2" in few
    many = list(reward_report("r", scored(*(number / 15 for number in range(16)))))
    assert [line.split()[-1] for line in many if "█" in line] == ["2"] * 8


def test_failures_and_the_slowest_answers_are_named_by_their_place():
    report = "\n".join(reward_report("r", scored(0, None, 1, None, seconds=(0.001, 2.0, 0.002, 0.003))))
    assert "failed: 2 times, first f:2: it broke" in report
    assert "time: median 3 ms, 95% within 2 s, longest 2 s" in report
    assert report.index("slowest: 2 s  f:2") < report.index("slowest: 3 ms  f:4") < report.index("slowest: 2 ms  f:3")


def test_the_oddest_answers_differ_most_from_the_others_of_their_prompt():
    [(first, usual), *_] = oddest(scored(0, 0, 0, 1, 1, 1, 1, 1, 1, 0, prompts="aaaabbbbbb"))
    assert first.place in ("f:4", "f:10")
    assert usual in (0, 1)
    assert oddest(scored(1, 1)) == oddest(scored(1)) == oddest(scored(None)) == []


def test_an_answer_that_gets_two_rewards_is_not_steady():
    answers = [ScoredAnswer("f:1", "p", "same", 0.0, 0.1), ScoredAnswer("f:2", "p", "same", 1.0, 0.1)]
    assert "not steady: the same answer has the rewards 0 and 1  f:2" in "\n".join(reward_report("r", answers))
    assert "not steady" not in "\n".join(reward_report("r", answers[:1] * 2))
    other = [replace(each, row={"answer": each.place}) for each in answers]
    assert "not steady" not in "\n".join(reward_report("r", other)), "these are answers to different rows"


def test_two_rewards_are_compared_where_both_have_a_value():
    rewards = {"a": scored(0, 1, 1, None), "b": scored(0, 1, 0.5, 1), "c": scored(1, 1, 1, 1)}
    lines = list(agreement_report(rewards))
    assert lines[0] == "a and b: 2 of 3 answers have equal rewards, correlation 0.866"
    assert lines[1] == "  different: 1 and 0.5  f:3  'answer 3'"
    assert "a and c: 2 of 3 answers have equal rewards, correlation none, as one of them is the same for all" in lines
    assert list(agreement_report({"a": scored(None), "b": scored(1)})) == ["a and b: no answer has both rewards"]
    assert list(agreement_report({"a": scored(1)})) == []


def test_the_correlation_is_pearsons():
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert correlation([1, 1], [0, 1]) is None
