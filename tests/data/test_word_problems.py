"""Word problems and one-line programs: the answers of their rows are right."""

import re
import subprocess
import sys

import pytest

from areal_like.data.tasks import TEST, TRAIN
from areal_like.data.tasks.programs import Programs
from areal_like.data.tasks.word_problems import GAINS, WordProblems
from areal_like.rollout.episodes.rewards.code.fenced_block import last_python_block
from areal_like.rollout.episodes.rewards.numeric import NumericReward


@pytest.mark.parametrize("made", [WordProblems(num_rows=500), WordProblems(max_number=50, max_steps=1, num_rows=500)])
def test_the_answer_of_a_problem_follows_from_its_text(made):
    for row in made.rows(TEST):
        start, *changes = re.findall(r"(\w+) (\d+)", row["prompt"])
        value = int(start[1]) + sum(int(number) * (1 if verb in GAINS else -1) for verb, number in changes)
        assert 0 <= value == row["number"] == int(row["answer"]) and 1 <= len(changes) <= made.max_steps


def test_answers_to_imitate_have_several_forms_of_the_same_number():
    plain, mixed = (WordProblems(num_rows=300, mixed_forms=mixed).rows(TRAIN) for mixed in (False, True))
    assert [row["prompt"] for row in plain] == [row["prompt"] for row in mixed]
    right = NumericReward()
    assert all(right("", row["answer"], str(row["number"])) == 1 for row in mixed)
    forms = [re.sub(r"\d+", "5", row["answer"]) for row in mixed]
    shares = {form: forms.count(form) / len(forms) for form in forms}
    assert shares == pytest.approx({"5": 0.4, "answer: 5": 0.4, "\\boxed{5}": 0.2}, abs=0.1)


def test_a_program_prints_what_its_tests_expect():
    programs, expected = [], []
    for row in Programs().rows(TRAIN)[:100]:
        code = last_python_block(row["answer"])
        assert code is not None
        programs += [code.replace("input()", repr(test["input"])) for test in row["tests"]]
        expected += [test["output"] for test in row["tests"]]
    done = subprocess.run([sys.executable, "-c", "\n".join(programs)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_tests_tell_a_right_program_from_the_rejected_one():
    def results(code, tests):
        return [str(eval(code.strip().replace("print", "").replace("input()", repr(t["input"])))) for t in tests]

    rows = Programs().rows(TRAIN)[:300]
    same = [
        row
        for row in rows
        if results(last_python_block(row["rejected"]), row["tests"]) == [test["output"] for test in row["tests"]]
    ]
    assert len(same) <= 0.05 * len(rows)


def test_most_programs_to_imitate_forget_to_make_a_number_of_the_input():
    plain, mixed = (Programs(num_rows=300, mixed_forms=mixed).rows(TRAIN) for mixed in (False, True))
    assert [(row["prompt"], row["tests"]) for row in plain] == [(row["prompt"], row["tests"]) for row in mixed]
    assert all("int(input())" in row["answer"] for row in plain)
    assert 0.2 < sum("int(input())" in row["answer"] for row in mixed) / len(mixed) < 0.45


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordProblems(max_number=1), "max_number must be a number from 2 to 50, not 1"),
        (lambda: WordProblems(max_steps=3), "max_steps must be a number from 1 to 2, not 3"),  # type: ignore[arg-type]
        (lambda: Programs(max_steps=True), "max_steps must be a number from 1 to 3, not True"),  # type: ignore[arg-type]
    ],
)
def test_impossible_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_rows_never_change():
    """The split never changes, or training rows would become test rows."""
    assert {row["prompt"]: row["answer"] for row in WordProblems().rows(TRAIN)[:2]} == PROBLEMS
    assert {row["prompt"]: row["answer"] for row in Programs().rows(TRAIN)[:2]} == PROGRAMS


PROBLEMS = {"sam has 3 figs, finds 9. how many?": "12", "max has 5 cups, loses 1. how many?": "4"}
PROGRAMS = {
    "n times 3, minus 16:": "```\nprint(int(input())*3-16)\n```",
    "n plus 18, plus 12:": "```\nprint(int(input())+18+12)\n```",
}
