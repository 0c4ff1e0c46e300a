"""The report of a hang has stacks of processes that do not write their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.agent.hang_report import HangReport, HungProcess


def report_of(pid: int, folder: Path) -> str:
    report = HangReport(folder, {"trainer/0": HungProcess("trainer-0", pid, folder / "stacks", ())}, [])
    while not report.is_done:
        time.sleep(0.01)
    return (folder / "trainer-0.txt").read_text()


@pytest.mark.parametrize("is_installed", [True, False])
def test_py_spy_is_found_beside_the_python_of_an_environment_that_is_not_activated(is_installed, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    if is_installed:
        program = tmp_path / "py-spy"
        program.write_text('#!/bin/sh\necho "the stacks: $@"\n')
        program.chmod(0o755)
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        report = report_of(process.pid, tmp_path / "hang-1")
        process.kill()
    stacks = f"the stacks: dump --nonblocking --pid {process.pid}"
    assert (stacks in report, "py-spy is not installed" in report) == (is_installed, not is_installed), report
