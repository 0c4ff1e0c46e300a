"""Runs from a file of which some rows are too long, which is found out during the first epoch."""

import json
from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, Ended, run

pytestmark = pytest.mark.xdist_group("ring-1")

ROWS = range(10, 70)
TOO_LONG = {row for row, number in enumerate(ROWS) if number % 4 == 0}
WORDS = (
    *(*SHORT, "train_dataset.path=rows.jsonl", "train_dataset.max_length=6", "train_dataset.batch_size=8"),
    *("max_head_offpolicyness=0", "total_train_epochs=1", "total_train_steps=null", "recover.freq_steps=3"),
    *("valid_dataset=null", "evaluator.freq_steps=null", "rollout.num_episode_workers=2"),
)


def write_rows(file: Path, changed: int | None = None) -> None:
    prompts = [f"{'0' * (row in TOO_LONG)}{number}+{27 if row == changed else 11}=" for row, number in enumerate(ROWS)]
    file.write_text("".join(json.dumps({"prompt": prompt, "answer": "046"}) + "\n" for prompt in prompts))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    root = tmp_path_factory.mktemp("lazy")
    write_rows(root / "rows.jsonl")
    ended = run(root, *WORDS)
    assert ended.code == 0, ended.text
    return ended


def test_the_epoch_ends_after_the_rows_that_are_short_enough(once):
    ledger = once.ledger()
    rows = [event["row"] for event in ledger if event["event"] == "submitted"]
    kept = len(ROWS) - len(TOO_LONG)
    steps = kept // 8
    assert len(once.metric("train/loss")) == steps == 5
    assert len(set(rows)) == len(rows) == 8 * steps and not TOO_LONG & set(rows)
    (corrected,) = [event for event in ledger if event["event"] == "corrected"]
    assert (corrected["rows"], corrected["steps"]) == (kept, steps)
    assert sum(once.metric("rollout/dropped_too_long")) == len(TOO_LONG)
    assert audit(ledger, 0) == []


def test_a_resumed_run_uses_the_same_rows_and_refuses_others(once):
    root = Path(once.directory).parents[2]
    again = run(root, f"resume={once.directory}", "resume_step=3", config=None)
    assert again.code == 0, again.text

    def rows(attempt: int) -> list[tuple[int, str]]:
        found = [event for event in again.ledger() if event["event"] == "submitted" and event["attempt"] == attempt]
        return [(event["row"], event["row_hash"]) for event in found]

    assert rows(2) == rows(1)[24:]
    write_rows(root / "rows.jsonl", changed=3)
    attempt = (once.directory / "attempt.json").read_text()
    other = run(root, f"resume={once.directory}", "resume_step=3", config=None)
    assert (once.directory / "attempt.json").read_text() == attempt, "nothing was started"
    assert other.code == 2 and "\ntrain_dataset [" in other.err, other.text
    assert "the data has changed since the checkpoint" in other.err and "nothing was started" in other.err
