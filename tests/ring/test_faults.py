"""Errors in user code or around a run end in one clear message, or the run continues."""

import re

import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.rollout.trajectory import prompt_hash
from tests.ring.start import SHORT, Ended, run

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

def down(prompt, completion, answer, **row):
    if sum(map(ord, completion)) % 3 == 0:
        import areal_like
        raise areal_like.InfrastructureError("the judge is down")
    return float(completion == answer)

class Falls:
    async def run(self, episode, row):
        raise KeyError("nothing there")

class Leaves:
    async def run(self, episode, row):
        os._exit(0)

class BlocksOnce:
    needs_reward = True
    async def run(self, episode, row):
        if not os.path.exists("blocked"):
            open("blocked", "w").close()
            time.sleep(3600)
        prompt = episode.encode(row["prompt"])
        samples = await episode.generate(prompt)
        rewards = await episode.score(row, samples)
        return [episode.trajectory(prompt, *pair) for pair in zip(samples, rewards)]

class SkipsSome:
    # For some rows nothing is generated.
    needs_reward = True
    async def run(self, episode, row):
        if row["prompt"][0] in "12":
            return None
        if row["prompt"][1] in "05":
            raise ValueError("not for this row")
        prompt = episode.encode(row["prompt"])
        samples = await episode.generate(prompt)
        rewards = await episode.score(row, samples)
        return [episode.trajectory(prompt, *pair) for pair in zip(samples, rewards)]

class Task:
    def rows(self, split):
        return [{"prompt": f"{a}+{b}=", "answer": f"{a + b:03}"} for b in range(10, 40) for a in range(10, 100, 3)]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(REWARDS)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reward.name=mine.py:raises",), "no judge today"),
        pytest.param(
            ("reward.name=mine.py:hangs", "reward.timeout_s=0.2", "rollout.request_retries=1"),
            "reward.timeout_s",
            marks=pytest.mark.slow,
        ),
        pytest.param(("reward.name=mine.py:nan",), "nan", marks=pytest.mark.slow),
        pytest.param(("workflow.name=mine.py:Falls",), "nothing there", marks=pytest.mark.slow),
        pytest.param(("workflow.name=mine.py:Leaves",), "os._exit(0)", marks=pytest.mark.slow),
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


def test_answers_that_cannot_be_judged_are_left_out_of_their_groups(folder):
    ended = run(folder, *WORDS, "reward.name=mine.py:down", "reward.max_failed_share=0.75")
    assert ended.code == 0, ended.text
    unjudged, failures = ended.metric("reward/answers_without_reward"), ended.metric("rollout/infrastructure_errors")
    assert 0 < sum(unjudged) < sum(failures), "each is tried again"
    assert ended.metric("reward/answers_without_vote") == unjudged
    facts = [event["rewards"] for event in ended.ledger() if event["event"] == "finished"]
    assert any(None in rewards for rewards in facts) and all(set(rewards) != {None} for rewards in facts)


def test_a_synchronous_step_waits_for_no_row_for_which_nothing_is_generated(folder):
    words = ("workflow.name=mine.py:SkipsSome", "max_head_offpolicyness=0", "rollout.request_timeout=60")
    ended = run(folder, *WORDS, *words, "evaluator.freq_steps=1", "rollout.backend=embedded:d2")
    assert ended.code == 0, ended.text
    assert len(ended.metric("train/loss")) == 3
    events = [event["event"] for event in ended.ledger()]
    assert "failed" in events and "dropped" in events


def test_a_worker_that_a_workflow_blocks_is_replaced(folder):
    ended = run(folder, *WORDS, "workflow.name=mine.py:BlocksOnce", "workflow.block_timeout_s=2", "total_train_steps=1")
    assert ended.code == 0, ended.text
    blocked = re.search(r"workflow.block_timeout_s: mine.py:BlocksOnce blocked .* in run; .* is replaced", ended.text)
    assert blocked and "(incarnation 2)" in ended.text
    assert "time.sleep(3600)" not in ended.text
    assert "in run" in (ended.directory / "logs" / "episodes-0.log").read_text()


@pytest.fixture(scope="module")
def sometimes(tmp_path_factory) -> Ended:
    """A run of a task in a file of the user, whose reward fails on some rows."""
    folder = tmp_path_factory.mktemp("sometimes")
    (folder / "mine.py").write_text(REWARDS)
    (folder / "keys.env").write_text("JUDGE_API_KEY=my-own-key\n")
    ended = run(
        folder,
        *SHORT,
        *("task.name=mine.py:Task", "reward.name=mine.py:sometimes", "rollout.request_retries=0"),
        *("launcher.env_file=[keys.env]", "total_train_steps=2", "evaluator.freq_steps=2", "evaluator.num_examples=20"),
    )
    assert ended.code == 0, ended.text
    return ended


def test_a_reward_that_fails_on_some_rows_drops_them_and_continues(sometimes):
    failed = sometimes.summary["failed_groups"]
    assert sum(sometimes.metric("rollout/failed")) == failed["failed"] >= failed["error_groups"] > 0
    assert "@judge refused" in failed["error"] and "pass-1234" not in failed["error"]
    assert "because every attempt failed; most frequent error (" in sometimes.out


@pytest.mark.shows("launcher.env_file")
def test_the_error_of_an_evaluation_is_shown_without_secrets(sometimes):
    evaluations = [line for line in sometimes.lines("metrics.jsonl") if "eval/failed" in line]
    assert [line["eval/due_step"] for line in evaluations] == [0, 2]
    for line in evaluations:
        assert line["eval/error"].endswith("not this one: http://<secret>@judge refused <secret>")
        assert 0 < line["eval/error_rows"] == line["eval/failed"] < line["eval/rows"]
    assert evaluations[-1]["eval/error"] in sometimes.summary["score_missing"]
    shown = [line for line in sometimes.out.splitlines() if evaluations[-1]["eval/error"] in line]
    of_rows = [line for line in shown if "because every attempt failed" in line]
    assert len(shown) - len(of_rows) == 3, "a line per evaluation, and the summary"
    assert not any("eval/error" in line for line in sometimes.lines("metrics.jsonl") if "train/loss" in line)


def test_a_user_task_is_loaded_from_a_file(sometimes):
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    prompts = [f"{a}+{b}=" for b in range(10, 40) for a in range(10, 100, 3)]
    seen = {event["prompt_hash"] for event in sometimes.ledger() if event["event"] == "finished"}
    assert seen and seen <= {prompt_hash(tokenizer.encode(prompt)) for prompt in prompts}


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
