"""Runs the launcher with fake processes: `python -m tests.support.fake_runs WORDS`."""

import getpass
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.process.run_memory import memory_folder
from launcher.commands import run
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from tests.support.commands import REPOSITORY

LIMIT_S = 120.0


def main(words: list[str]) -> int:
    from areal_like import api
    from launcher import cli
    from launcher.supervisor import run_lock

    behaviour = json.loads(os.environ.get("FAKE_PROCESS", "{}"))
    for name, value in behaviour.get("constants", {}).items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    if "hold_hashes" in behaviour:
        _hold_hashes(Path(behaviour["hold_hashes"]))
    if "hold_drain" in behaviour:
        _hold_drain(Path(behaviour["hold_drain"]))
    api.COMMAND = (sys.executable, "-m", "tests.support.fake_runs")
    for module in (run, run_lock):
        setattr(module, "build_plan", _with_fake_processes)  # noqa: B010
    return cli.main(words)


def _hold_hashes(while_exists: Path) -> None:
    """The launcher reads files as slowly as from a busy disk, while this file exists."""
    from areal_like.process import checkpoint_files

    whole = checkpoint_files.hash_of

    def slowly(file: Path, on_read: checkpoint_files.OnRead = lambda _size: None) -> str:
        while while_exists.exists():
            on_read(0)
            time.sleep(0.02)
        return whole(file, on_read)

    checkpoint_files.hash_of = slowly


def _hold_drain(while_exists: Path) -> None:
    """The trackers take the last metrics as slowly as over a busy network, while this file exists."""
    from areal_like.observe.observer import Observer

    whole = Observer.drain

    def slowly(self: Observer) -> None:
        while_exists.with_suffix(".reached").touch()
        while while_exists.exists():
            time.sleep(0.02)
        whole(self)

    setattr(Observer, "drain", slowly)  # noqa: B010


def _with_fake_processes(loaded: Loaded, **more: Any) -> Plan:
    plan = build_plan(loaded, **more)
    fake_process = (sys.executable, "-m", "tests.support.fake_process")
    processes = [replace(process, command=(*fake_process, process.role), cores=()) for process in plan.processes]
    return plan._replace(processes=tuple(processes))


@dataclass
class FakeRun:
    """A run of fake processes."""

    process: subprocess.Popen[str]
    root: Path

    @property
    def directory(self) -> Path:
        directories = [path for path in sorted((self.root / "runs").glob("*/*")) if ".replaced" not in path.name]
        return directories[-1]

    def wait(self) -> "FinishedRun":
        out, err = self.process.communicate(timeout=LIMIT_S)
        return FinishedRun(self.process.returncode, out, err, self.root)

    def until(self, what: str) -> None:
        """Waits until a file or pattern exists below the run's directory."""
        self.until_true(lambda: bool(list((self.root / "runs").glob(f"*/*/{what}"))))

    def until_output(self, words: str) -> None:
        assert self.process.stdout is not None
        while words not in (line := self.process.stdout.readline()):
            assert line, self.wait()

    def until_true(self, holds: Any) -> None:
        ends = time.monotonic() + LIMIT_S
        while not holds():
            assert self.process.poll() is None, self.wait()
            assert time.monotonic() < ends, "the condition did not become true"
            time.sleep(0.02)

    def pids(self) -> dict[str, int]:
        """By the name of the process; the launcher is the guardian's only child."""
        pids = {"guardian": self.process.pid, **running_processes(self.root)}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        pids["launcher"] = int(children[0])
        return pids

    def kill(self, name: str) -> None:
        os.kill(self.pids()[name], signal.SIGKILL)


@dataclass
class FinishedRun:
    """The result of a run of fake processes."""

    code: int
    out: str
    err: str
    root: Path

    @property
    def directory(self) -> Path:
        return FakeRun(None, self.root).directory  # type: ignore[arg-type]

    def steps(self) -> list[int]:
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    def log(self, name: str) -> str:
        return (self.directory / "logs" / name).read_text()

    @property
    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return content


def environment_of(root: Path, **behaviour: Any) -> dict[str, str]:
    """Variables of the fake processes of a run below `root`."""
    return {
        "PYTHONPATH": str(REPOSITORY),
        "XDG_STATE_HOME": str(root / "state"),
        "FAKE_PROCESS": json.dumps(behaviour),
        "FAKE_PROCESS_NAMES": str(root / "runs" / ".names"),
        "FAKE_PROCESS_USER": getpass.getuser(),
        "OMP_NUM_THREADS": "1",
    }


def start_fake_run(
    root: Path, *words: str, cwd: Path | None = None, within: Sequence[str] = (), **behaviour: Any
) -> FakeRun:
    """`within`: a program that executes the command. `behaviour`: settings of the fake processes (steps, step_s,
    faults), and `constants` of the launcher."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AREAL_LIKE")}
    environment = inherited | environment_of(root, **behaviour)
    command = [sys.executable, "-m", "tests.support.fake_runs"]
    if not any(word.startswith("resume=") for word in words):
        command += ["--config", "grpo.yaml", "tracker=none", "recover.mode=auto"]
    if "steps" in behaviour and not any(word.startswith("total_train_steps=") for word in words):
        command.append(f"total_train_steps={behaviour['steps']}")
    process = subprocess.Popen(
        [*within, *command, *words],
        cwd=cwd or root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return FakeRun(process, root)


def running_processes(root: Path) -> dict[str, int]:
    """Processes of runs below this folder, with orphans, without zombies."""
    processes = {}
    for entry in Path("/proc").iterdir():
        try:
            pid = int(entry.name)
            variables = dict(part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part)
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (ValueError, OSError):
            continue
        if variables.get("AREAL_LIKE_RUN_DIR", "").startswith(str(root)) and state != "Z":
            name = variables["AREAL_LIKE_PROCESS"]
            processes[name if name not in processes else f"{name} ({pid})"] = pid
    return processes


def leftover_processes(root: Path, limit_s: float = 60.0) -> dict[str, int]:
    """Processes that are still alive after a while."""
    ends = time.monotonic() + limit_s
    while (left := running_processes(root)) and time.monotonic() < ends:
        time.sleep(0.02)
    return left


def memory_of(directory: Path) -> Path:
    """The folder through which a run's weights are sent."""
    return memory_folder(json.loads((directory / "run.json").read_text())["run_id"])


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except ConfigError as error:
        print(error.text(), file=sys.stderr)
        code = 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
