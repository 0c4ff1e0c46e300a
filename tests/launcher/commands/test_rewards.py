"""`rewards`: saved answers are scored by one or more rewards, without a run."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Run, command_runner

ROWS = [
    {"prompt": "1+1=", "answer": "2", "completion": "2"},
    {"prompt": "1+1=", "answer": "2", "completion": "it is 2"},
    {"prompt": "1+2=", "answer": "three", "completion": "3"},
]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    return command_runner(tmp_path, capfd, monkeypatch)


def test_rewards_are_reported_with_their_failures_and_compared(run: Run):
    done = run("rewards", "answers.jsonl", "--reward", "exact", "--reward=numeric,tolerance=0.5")
    assert done.code == 0
    assert "exact: 3 answers to 2 prompts, 0 failed" in done.out
    assert "numeric: 3 answers to 2 prompts, 1 failed" in done.out
    assert "failed: 1 times, first answers.jsonl:5: numeric failed after one try: ValueError: the row's" in done.out
    assert "exact and numeric: 1 of 2 answers have equal rewards" in done.out


def test_arguments_are_those_of_yaml_and_the_same_reward_may_have_several(run: Run):
    Path("mine.py").write_text("def kinds(prompt, completion, tags, limit):\n    return limit * len(tags)\n")
    words = ["mine.py:kinds,tags=[a,b],limit=0.5", "mine.py:kinds,tags='x,y',limit=2"]
    done = run("rewards", "answers.jsonl", *(f"--reward={word}" for word in words))
    assert "mine.py:kinds,tags=[a,b],limit=0.5: 3 answers" in done.out
    assert "mean 1, deviation 0" in done.out
    assert "mean 6, deviation 0" in done.out


def test_a_reward_that_hangs_ends_its_answer_alone(run: Run):
    Path("mine.py").write_text(
        "import time\n\ndef hangs(prompt, completion):\n    return time.sleep(600) if 'is' in completion else 1\n"
    )
    done = run("rewards", "answers.jsonl", "--reward", "mine.py:hangs", "reward.timeout_s=0.5")
    assert done.code == 0
    assert "3 answers to 2 prompts, 1 failed" in done.out
    assert "failed: 1 times, first answers.jsonl:3: mine.py:hangs failed after one try: it took longer" in done.out


def test_a_reward_that_fails_for_all_answers_fails(run: Run):
    Path("mine.py").write_text("def broken(prompt, completion):\n    return completion.nothing\n")
    done = run("rewards", "answers.jsonl", "--reward", "mine.py:broken")
    assert done.code == 1
    assert "0 failed" not in done.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--reward", "exat"], "reward.name [--reward exat]: 'exat' is not built in; did you mean exact?"),
        (["--reward", "exact,tak=tag"], "reward.args.tak [--reward exact,tak=tag]: exact takes no such argument"),
        (["--reward", "model"], "reward.name [--reward model]: a reward model is served by a run"),
        (["--reward", "exact,tag"], "--reward [exact,tag]: 'tag' is no argument; write NAME,argument=value"),
        ([], "--reward [command line]: is missing"),
        (["--reward"], "--reward [command line]: needs a value"),
        (["--reward=exact", "seed=1"], "seed=1 [command line]: rewards takes only reward.timeout_s=SECONDS"),
        (["--reward=exact", "reward.timeout_s=0"], "reward.timeout_s=0 [command line]: rewards takes only"),
        (["--reward=exact", "--dry-run"], "--dry-run [command line]: has no effect on rewards"),
        (["--reward=needy.py:needy"], "answers.jsonl:1: has no 'choices', which the reward needy.py:needy needs"),
    ],
)
def test_what_cannot_be_tried_is_refused(run: Run, words: list[str], problem: str):
    Path("needy.py").write_text("def needy(prompt, completion, choices):\n    return 1\n")
    assert problem in run.refusal("rewards", "answers.jsonl", *words)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "a.jsonl: cannot be read: No such file"),
        ("", "a.jsonl: has no answers"),
        ("{", "a.jsonl:1: is not a line of JSON"),
        ("[]", "a.jsonl:1: has no 'prompt'"),
        ('{"prompt": "a"}', "a.jsonl:1: has no 'completion'"),
        ('{"prompt": "a", "completion": 3}', "a.jsonl:1: completion is 3; it must be a text"),
    ],
)
def test_a_file_that_has_no_answers_is_refused(run: Run, content: str | None, problem: str):
    if content is not None:
        Path("a.jsonl").write_text(content)
    assert run.refusal("rewards", "a.jsonl", "--reward", "exact").startswith(problem)


def test_other_commands_refuse_its_flag_and_it_needs_a_file(run: Run):
    assert "--reward [command line]: is only for the command rewards" in run.refusal("grpo", "--reward=exact")
    assert "rewards [command line]: needs FILE" in run.refusal("rewards")
