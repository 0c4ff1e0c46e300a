"""What ends the supervisor ends the run with its reason, so that its summary is written."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.errors import Failure
from areal_like.process.run import StartPoint
from launcher.supervisor import locked_start
from launcher.supervisor.lifecycle import Lifecycle, RunEnding
from launcher.supervisor.locked_start import LockedStart
from launcher.supervisor.restart_policy import RestartPolicy


def ending_of(error: Exception, directory: Path, monkeypatch: pytest.MonkeyPatch) -> RunEnding:
    class Failing:
        attempt = 1

        def __init__(self, *_: object) -> None:
            pass

        def watch(self) -> RunEnding:
            raise error

    monkeypatch.setattr(locked_start, "Supervisor", Failing)
    for name in ("Roster", "LocalAgent", "wait_limits"):
        monkeypatch.setattr(locked_start, name, lambda *_: None)
    config = SimpleNamespace(log=SimpleNamespace(file=None))
    run = SimpleNamespace(config=config, directory=directory, run_id="own")
    locked: Any = SimpleNamespace(
        run=run, plan=SimpleNamespace(processes=(), run_dir=str(directory)), names=None, start=None
    )
    loaded: Any = SimpleNamespace(redactor=SimpleNamespace(secrets=()))
    start = LockedStart(loaded, locked, "", "", ())
    return start.watch(RestartPolicy("auto", 1), lambda _: None, Lifecycle())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Failure("etcd at e:1 refuses a call"), "etcd at e:1 refuses a call"),
        (ConfigError([Problem("cluster.name_resolve.etcd3_user", "may not read")]), "etcd3_user: may not read"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "BlockingIOError: [Errno 11] Resource temporarily"),
        (OSError(errno.ESTALE, "Stale file handle", "/runs/attempt.json"), "Stale file handle: '/runs/attempt.json'"),
    ],
)
def test_a_failure_of_the_supervisor_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
):
    ending = ending_of(error, tmp_path, monkeypatch)
    assert (ending.outcome, ending.code) == ("failed", 1) and message in ending.message


def test_a_failure_after_another_launcher_has_taken_over_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    start = StartPoint(2, 0, None, owner="another")
    (tmp_path / "attempt.json").write_text(json.dumps(start._asdict()))
    ending = ending_of(Failure("it was stalled"), tmp_path, monkeypatch)
    assert ending.outcome == "lost" and "another launcher has begun attempt 2" in ending.message
