"""The task `reasoning_gym`: puzzles and scores of that package, and answers that try to be programs."""

import re

import pytest

from areal_like.data.tasks import TEST, TRAIN, evaluating_scorers
from areal_like.data.tasks.evaluating_scorers import evaluating_puzzles
from areal_like.data.tasks.reasoning_gym import FILTERS, HUGE_POWER, REFUSED, ReasoningGym

READS = "def read(text): return sympify(text)"
SCORES = "def score_answer(self, answer): return exec(answer)"


def test_rows_are_the_same_each_time_and_no_held_out_question_is_trained_on():
    train, test = (ReasoningGym(num_rows=300).rows(split) for split in (TRAIN, TEST))
    assert list(train[:20]) == list(ReasoningGym(num_rows=300).rows(TRAIN)[:20])
    prompts = [{row["prompt"] for row in rows} for rows in (train, test)]
    assert not prompts[0] & prompts[1] and 0.7 < len(train) / (len(train) + len(test)) < 0.9
    assert ReasoningGym(num_rows=300, seed=2).rows(TRAIN)[0] != train[0]


def test_arguments_of_the_puzzle_are_passed_on():
    task = ReasoningGym("chain_sum", {"min_terms": 2, "max_terms": 2}, num_rows=20)
    assert all(len(re.findall(r"\d+", row["prompt"])) == 2 for row in task.rows(TRAIN))


@pytest.mark.parametrize(
    ("completion", "graded", "score"),
    [("{}", 1.0, 1.0), ("so <answer> {} </answer>", 1.0, 1.0), ("<answer>no</answer>", 0.0, 0.0), ("", 0.0, 0.0)],
)
def test_an_answer_gets_the_score_of_the_package(completion, graded, score):
    task = ReasoningGym(num_rows=20)
    row = task.rows(TRAIN)[0]
    reward = task.reward(row["prompt"], completion.format(row["answer"]), row["puzzle"])
    assert reward == {"graded": graded, "score": score}


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_the_right_answer_of_a_puzzle_that_evaluates_passes_its_filter(name):
    task = ReasoningGym(name, num_rows=3)
    for number in range(3):
        answer = task.row(number)["answer"]
        assert FILTERS[name].fullmatch(answer) and not HUGE_POWER.search(answer), answer


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize(
    "program",
    [
        "__import__('os').mkdir('{}')",
        "[__import__('os').mkdir('{}')]",
        "().__class__.__base__.__subclasses__()",
        "eval(chr(111)+chr(115))",
        "open('{}', 'w')",
        "exit(3)",
        "print(1)",
        "9**9**9**9",
    ],
)
def test_an_answer_that_is_a_program_is_never_evaluated(name, program, tmp_path):
    made = tmp_path / "made"
    task = ReasoningGym(name, num_rows=1)
    assert task.reward("", program.format(made), 0) == {"graded": 0.0, "score": 0.0}
    assert not made.exists()


def test_every_scorer_that_evaluates_text_of_the_package_is_known_and_runs_in_the_sandbox():
    """Those without a filter evaluate their own puzzle alone."""
    assert evaluating_puzzles() == {*FILTERS, "bitwise_arithmetic", "number_sorting"}
    assert all(ReasoningGym(name, num_rows=1)._sandboxed is not None for name in ("countdown", "number_sorting"))
    assert ReasoningGym("chain_sum", num_rows=1)._sandboxed is None


@pytest.mark.parametrize(
    ("files", "evaluates"),
    [
        ({"one": "def score_answer(self, answer): return eval(answer)"}, True),
        (
            {"one": "def score_answer(self, a): return self.read(a)\ndef read(self, a): return sympy.parse_expr(a)"},
            True,
        ),
        ({"one": "from .two import read\ndef score_answer(self, a): return read(a)", "two": READS}, True),
        ({"one": "from pkg.two import Two\nclass One(Two): pass", "two": f"class Two:\n  {SCORES}"}, True),
        ({"one": "def make(self): return eval('1')\ndef score_answer(self, a): return json.loads(a)"}, False),
        ({"one": "def score_answer(self, a): return parse_expr(a)\ndef parse_expr(a): return a.split()"}, False),
    ],
)
def test_a_scorer_evaluates_if_any_function_that_it_may_call_does(files, evaluates, tmp_path, monkeypatch):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, code in files.items():
        registered = "\nregister_dataset('puzzle', One)" if name == "one" else ""
        (package / f"{name}.py").write_text(f"{code}{registered}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(evaluating_scorers, "PACKAGE", "pkg")
    assert evaluating_puzzles.__wrapped__() == ({"puzzle"} if evaluates else set())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_puzzles_that_run_programs_are_refused(name):
    with pytest.raises(ValueError, match=f"dataset={name} cannot be used"):
        ReasoningGym(name)


class BrokenScorer:
    """Fails with all answers to puzzle 1, and with `?` to any other."""

    def __getitem__(self, number):
        return {"answer": "3", "number": number}

    def score_answer(self, answer, puzzle):
        if puzzle["number"] == 1 or answer == "?":
            raise KeyError("no such metadata")
        return 1.0


def test_a_puzzle_that_its_own_scorer_cannot_score_is_an_error_and_an_unreadable_answer_is_wrong():
    task = ReasoningGym(num_rows=20)
    task._puzzles = BrokenScorer()
    assert task._graded("?", task._puzzles[0]) == 0.0
    with pytest.raises(ValueError, match="the scorer of chain_sum fails with the answer of the puzzle"):
        task._graded("3", task._puzzles[1])


def test_a_row_whose_puzzle_is_another_one_in_this_process_is_an_error():
    task = ReasoningGym(num_rows=20)
    with pytest.raises(ValueError, match="export PYTHONHASHSEED=0"):
        task.reward("", "3", 1, "no such answer")
