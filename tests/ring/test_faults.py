"""Errors in user code or around a run end in one clear message, or the run continues."""

import pytest

from tests.ring.start import SHORT, run

pytestmark = pytest.mark.xdist_group("ring-1")

WORDS = (*SHORT, "total_train_steps=3", "evaluator.freq_steps=null", "train_dataset.batch_size=4")
REWARDS = """
import os
import time

def raises(prompt, completion, **row):
    raise RuntimeError("no judge today")

def hangs(prompt, completion, **row):
    time.sleep(3600)

def nan(prompt, completion, **row):
    return float("nan")

def sometimes(prompt, completion, answer, **row):
    if prompt[0] in "12":
        raise RuntimeError("not this one: http://me:pass-1234@judge refused my-own-key")
    return float(completion == answer)

class Falls:
    async def run(self, episode, row):
        raise KeyError("nothing there")

class Leaves:
    async def run(self, episode, row):
        os._exit(0)

class Task:
    def rows(self, split):
        return [{"prompt": f"{a}+{b}=", "answer": f"{a + b:03}"} for a in range(10, 40) for b in range(10, 20)]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(REWARDS)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reward.name=mine.py:raises",), "no judge today"),
        (("reward.name=mine.py:hangs", "reward.timeout_s=0.2", "rollout.request_retries=1"), "reward.timeout_s"),
        pytest.param(("reward.name=mine.py:nan",), "nan", marks=pytest.mark.slow),
        pytest.param(("workflow.name=mine.py:Falls",), "nothing there", marks=pytest.mark.slow),
        (("workflow.name=mine.py:Leaves",), "os._exit(0)"),
    ],
    ids=[
        "a reward that raises",
        "a reward that hangs",
        "a reward that returns nan",
        "a workflow that raises",
        "a workflow that ends its process",
    ],
)
def test_code_that_never_works_ends_the_run_with_its_error(words, message, folder):
    ended = run(folder, *WORDS, *words)
    assert ended.code == 1, ended.text
    assert message in ended.err, ended.text
    assert "Traceback" not in ended.err and "Traceback" not in ended.out


def test_a_reward_that_fails_on_some_rows_drops_them_and_continues(folder):
    words = ("reward.name=mine.py:sometimes", "rollout.request_retries=0", "train_dataset.batch_size=16")
    ended = run(folder, *WORDS, *words)
    assert ended.code == 0, ended.text
    failed = ended.summary["failed_groups"]
    assert sum(ended.metric("rollout/failed")) == failed["failed"] >= failed["error_groups"] > 0
    assert "@judge refused" in failed["error"] and "pass-1234" not in failed["error"]
    assert "because every attempt failed; most frequent error (" in ended.out


def test_the_error_of_an_evaluation_is_shown_without_secrets(folder):
    (folder / "keys.env").write_text("JUDGE_API_KEY=my-own-key\n")
    words = (
        *("reward.name=mine.py:sometimes", "rollout.request_retries=0", "launcher.env_file=[keys.env]"),
        *("total_train_steps=1", "evaluator.freq_steps=1", "evaluator.num_examples=20", "train_dataset.batch_size=4"),
    )
    ended = run(folder, *SHORT, *words)
    assert ended.code == 0, ended.text
    evaluations = [line for line in ended.lines("metrics.jsonl") if "eval/failed" in line]
    assert [line["eval/due_step"] for line in evaluations] == [0, 1]
    for line in evaluations:
        assert line["eval/error"].endswith("not this one: http://<secret>@judge refused <secret>")
        assert 0 < line["eval/error_rows"] == line["eval/failed"] < line["eval/rows"]
    assert evaluations[-1]["eval/error"] in ended.summary["score_missing"]
    assert ended.out.count(evaluations[-1]["eval/error"]) == 3, "a line per evaluation, and the summary"
    assert not any("eval/error" in line for line in ended.lines("metrics.jsonl") if "train/loss" in line)


def test_a_user_task_is_loaded_from_a_file(folder):
    words = ("task.name=mine.py:Task", "reward.name=addition", "total_train_steps=1")
    ended = run(folder, *WORDS, *words, "valid_dataset=null")
    assert ended.code == 0, ended.text


def test_a_task_file_with_an_error_gives_one_message(folder):
    (folder / "broken.py").write_text(
        "import nothing_of_that_name\n\nclass Task:\n    def rows(self, split):\n        return []\n"
    )
    ended = run(folder, *WORDS, "task.name=broken.py:Task", "reward.name=addition")
    assert ended.code == 2, ended.text
    assert ended.err.startswith("task.name"), ended.text
    assert "nothing_of_that_name" in ended.err and "Traceback" not in ended.err
    assert not [*folder.glob("runs/*/*")], "nothing had begun, so no trial is left behind"


def test_a_full_run_directory_is_refused_before_anything_starts(folder):
    directory = folder / "runs" / "grpo-addition" / "t"
    directory.mkdir(parents=True)
    (directory / "notes.txt").write_text("mine")
    ended = run(folder, *WORDS, "recover.mode=disabled")
    assert ended.code == 2 and ended.err.count("trial_name") >= 1, ended.text
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
