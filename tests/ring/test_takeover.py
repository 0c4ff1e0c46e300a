"""A launcher that was stalled while another one has taken its run over writes nothing more and says so."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from areal_like.process.checkpoint_files import complete_checkpoints, hash_of
from areal_like.rollout.audit import audit
from areal_like.training.checkpoint import read_trainer_state
from tests.ring.start import LIMIT_S, SHORT, Running, environment, running, wait_until_gone

pytestmark = pytest.mark.xdist_group("ring-2")

TTL_S = 5
STEPS = 24
WORDS = (
    *(*SHORT, f"total_train_steps={STEPS}", "evaluator.freq_steps=null", f"cluster.name_resolve.ttl_s={TTL_S}"),
    *("log.data=true", "enable_token_export=true"),
)
OTHER_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""What is started so sees none of the other processes, as on another machine."""


def requires_namespaces() -> None:
    tried = subprocess.run([*OTHER_PIDS, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this user cannot start processes in another pid namespace: {tried.stderr.strip()}")


@contextmanager
def other_launcher(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It resumes the run from a pid namespace of its own."""
    with (root / "other.output").open("wb") as output:
        process = subprocess.Popen(
            [*OTHER_PIDS, sys.executable, "-m", "launcher", "resume=t"],
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(120)


def send_to_all(ring: Running, number: int, pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


def files(directory: Path) -> dict[str, str]:
    """Each file with its content, without logs and what keeps two launchers apart."""
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {name: hash_of(path) for name, path in sorted(found.items()) if not name.startswith("logs/")}


@pytest.mark.slow
@pytest.mark.parametrize("while_it", ["runs", "has ended"])
def test_a_stalled_run_that_another_launcher_has_taken_over_writes_nothing_when_it_comes_back(tmp_path, while_it):
    requires_namespaces()
    with running(tmp_path, *WORDS) as stalled:
        stalled.wait_for_step(4)
        pids = [stalled.process.pid, stalled.launcher(), *stalled.pids()]
        send_to_all(stalled, signal.SIGSTOP, pids)
        directory = stalled.directory
        with other_launcher(tmp_path) as other:
            ends = time.monotonic() + LIMIT_S
            wanted = 6 if while_it == "runs" else STEPS
            while max(stalled.steps(attempt=2), default=0) < wanted:
                assert other.poll() is None and time.monotonic() < ends, (tmp_path / "other.output").read_text()
                time.sleep(0.1)
            before: dict[str, str] = {}
            if while_it == "has ended":
                assert other.wait(LIMIT_S) == 0, (tmp_path / "other.output").read_text()
                before = files(directory)
            send_to_all(stalled, signal.SIGCONT, pids)
            ended = stalled.wait()
            if while_it == "has ended":
                assert files(directory) == before
            assert other.wait(LIMIT_S) == 0, (tmp_path / "other.output").read_text()
    assert ended.code == 1, ended.text
    assert "another launcher may be using" in ended.text or "another launcher has begun attempt 2" in ended.text
    assert ended.summary["attempts"] == 2 and ended.summary["outcome"] == "done"
    lines = [(line["step"], line["attempt"]) for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert [step for step, _ in lines] == list(range(1, STEPS + 1))
    assert [attempt for _, attempt in lines] == sorted(attempt for _, attempt in lines)
    events = ended.ledger()
    attempts = [event["attempt"] for event in events]
    assert attempts == sorted(attempts)
    assert audit(events, 2) == []
    for _, checkpoint in complete_checkpoints(directory / "checkpoints"):
        assert read_trainer_state(checkpoint)["attempt"] == 2
    assert wait_until_gone(directory) == {}
