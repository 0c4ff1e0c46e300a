"""`try` with a model on any engine: it answers eight rows without a trainer."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.ring.start import LIMIT_S, command, environment, let_ctrl_c_end_it, processes_of, run
from tests.ring.test_servers_alone import KEY, NAMED, VARIABLE, serving
from tests.support.engine_environments import require_engine

pytestmark = pytest.mark.xdist_group("servers_alone")

WAITS = """
import asyncio

class Waits:
    async def run(self, episode, row):
        open("waits", "w").close()
        await asyncio.Event().wait()
"""


def tried(root: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command("try", *words),
        cwd=root,
        env=environment(root, **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def shows_eight_rows(out: str) -> bool:
    return (out.count("of the train split of task addition"), out.count("trained on, ")) == (8, 16)


def test_the_model_on_its_server_answers_eight_rows_and_nothing_stays(tmp_path: Path):
    done = tried(tmp_path, "n_samples=2")
    assert done.returncode == 0, done.stderr
    assert "server/0 ready" in done.stdout
    assert shows_eight_rows(done.stdout), done.stdout
    assert "of 8 groups have different rewards, pass@1 " in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_servers_that_run_already_answer_too(tmp_path: Path):
    variables = {VARIABLE: KEY}
    with serving(tmp_path / "served", NAMED, **variables) as servers:
        address = f"rollout.server_addresses=[{servers.addresses()[0]}]"
        done = tried(tmp_path, "n_samples=2", address, NAMED, **variables)
        assert done.returncode == 0 and shows_eight_rows(done.stdout), done.stdout + done.stderr
        assert servers.process.poll() is None


def test_a_row_that_cannot_be_read_is_refused_and_nothing_stays(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"text": "1"}\n')
    done = tried(tmp_path, "train_dataset.path=rows.jsonl", "train_dataset.batch_size=1", "valid_dataset=null")
    assert done.returncode == 2 and "rows.jsonl:2" in done.stderr, done.stdout + done.stderr
    assert not list(tmp_path.rglob("config.yaml"))


def test_ctrl_c_ends_it_with_all_that_it_started(tmp_path: Path):
    words = command("try", "workflow.name=waits.py:Waits")
    (tmp_path / "waits.py").write_text(WAITS)
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), preexec_fn=let_ctrl_c_end_it)
    try:
        until = time.monotonic() + LIMIT_S
        while not (tmp_path / "waits").exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        [directory] = [path.parent for path in tmp_path.rglob("config.yaml")]
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    finally:
        process.kill()
        process.wait()
    assert not processes_of(directory)
    assert not list(tmp_path.rglob("config.yaml")) and not list((tmp_path / "state").rglob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_model_on_another_engine_answers(engine: str, tmp_path: Path):
    found = f"{engine}.python={require_engine(engine)}"
    done = tried(tmp_path, f"rollout={engine}", found, "n_samples=2", "rollout.setup_timeout=220")
    assert done.returncode == 0 and shows_eight_rows(done.stdout), done.stdout + done.stderr


def test_the_first_step_of_a_run_is_judged_in_its_log_and_its_ledger(tmp_path: Path):
    ended = run(tmp_path, "total_train_steps=1", "train_dataset.batch_size=4", "n_samples=2", "valid_dataset=null")
    assert ended.code == 0, ended.text
    [judged] = [event for event in ended.ledger() if event["event"] == "judged"]
    assert (judged["groups"], judged["answers"], judged["k"]) == (4, 8, 2), json.dumps(judged)
    log = (ended.directory / "logs" / "rollout-0.log").read_text()
    assert f"answers of the first step: {judged['text']}" in log


TELLS = """
import os

class Tells:
    async def run(self, episode, row):
        print("workflow", dict(os.environ))
        raise RuntimeError(f"no answer with {dict(os.environ)}")
"""


@pytest.mark.slow
def test_the_logs_of_a_failed_try_hold_no_variable_of_an_env_file(tmp_path: Path):
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "own.env").write_text("OWN=planted-in-a-file\n")
    done = tried(tmp_path, "workflow.name=tells.py:Tells", "launcher.env_file=[own.env]")
    assert done.returncode == 1, done.stdout + done.stderr
    logs = [path.read_text(errors="replace") for path in tmp_path.rglob("*.log")]
    assert any("OWN" in text for text in logs), "what it printed is there"
    assert not [text for text in (*logs, done.stdout, done.stderr) if "planted-in-a-file" in text]
