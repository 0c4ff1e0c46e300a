"""`try` with a model: it answers eight rows without servers and trainer."""

import json
import subprocess
from pathlib import Path

from tests.ring.start import LIMIT_S, command, environment, run


def test_the_model_answers_eight_rows_and_nothing_else_is_started(tmp_path: Path):
    words = command("try", "n_samples=2")
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of the train split of task addition") == 8
    assert done.stdout.count("trained on, ") == 16
    assert "of 8 groups have different rewards, pass@1 " in done.stdout
    assert not list(tmp_path.rglob("config.yaml"))


def test_the_first_step_of_a_run_is_judged_in_its_log_and_its_ledger(tmp_path: Path):
    ended = run(tmp_path, "total_train_steps=1", "train_dataset.batch_size=4", "n_samples=2", "valid_dataset=null")
    assert ended.code == 0, ended.text
    [judged] = [event for event in ended.ledger() if event["event"] == "judged"]
    assert (judged["groups"], judged["answers"], judged["k"]) == (4, 8, 2), json.dumps(judged)
    log = (ended.directory / "logs" / "rollout-0.log").read_text()
    assert f"answers of the first step: {judged['text']}" in log
