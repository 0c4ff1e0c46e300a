"""Starts runs as a user does, and reads their files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from areal_like.discovery import Entry, open_name_store, parse_entry
from areal_like.process.identity import TOKEN_DESCRIPTOR, Identity, passed_token
from areal_like.process.run import open_run
from areal_like.process.run_memory import memory_folder
from tests.support.commands import REPOSITORY
from tests.support.listening_sockets import listening, listening_sockets

LIMIT_S = 240
SHORT = (
    "evaluator.num_examples=32",
    "recover.freq_steps=3",
    "train_dataset.batch_size=16",
    "n_samples=4",
)
"""What makes a run of few steps quick."""


def environment(root: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SWANLAB", "AREAL_LIKE"))
    }
    ours = {"PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(root / "state"), "CUDA_VISIBLE_DEVICES": ""}
    return kept | ours | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


def command(*words: str, config: str | None = "grpo.yaml") -> list[str]:
    first = [] if config is None else ["--config", config, "cluster.fileroot=runs"]
    return [sys.executable, "-m", "launcher", *first, *words]


def warnings_in(text: str) -> list[str]:
    """What a run says of its health. A healthy one says nothing."""
    return re.findall(r"^step +\d+: .*$", text, flags=re.M)


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.directory / name
        return [json.loads(line) for line in path.read_text().splitlines()]

    def metric(self, name: str) -> list[Any]:
        """In the order of steps."""
        from areal_like.observe.reading import read_metrics

        return [line[name] for line in read_metrics(self.directory) if name in line]

    def ledger(self) -> list[dict[str, Any]]:
        from areal_like.rollout.ledger import read_ledger

        return list(read_ledger(self.directory / "rollouts" / "ledger.jsonl"))

    def model(self) -> Path:
        return Path(self.summary["model"])


def run(
    root: Path,
    *words: str,
    trial: str = "t",
    config: str | None = "grpo.yaml",
    limit_s: float = LIMIT_S,
    **more: str,
) -> Ended:
    """A run from its start to its end; `more` is for its environment."""
    root.mkdir(parents=True, exist_ok=True)
    named = [] if config is None else [f"trial_name={trial}"]
    done = subprocess.run(
        command(*named, *words, config=config),
        cwd=root,
        env=environment(root, **more),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, directory_of(root, trial))


def directory_of(root: Path, trial: str) -> Path:
    found = sorted((root / "runs").glob(f"*/{trial}"))
    return found[0] if found else root / "runs" / "none" / trial


class Running:
    """A running run, which a test observes or disturbs. `secret` is its token."""

    def __init__(
        self, root: Path, words: Sequence[str], trial: str, config: str, prefix: Sequence[str] = (), **more: str
    ) -> None:
        """`prefix`: a program that starts the command. `more` is for its environment."""
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.trial = root, trial
        self.output = root / f"{trial}.output"
        self.secret = token_hex(32)
        with self.output.open("wb") as file, passed_token(self.secret) as token:
            self.process = subprocess.Popen(
                [*prefix, *command(f"trial_name={trial}", *words, config=config)],
                cwd=root,
                env=environment(root, **more, **{TOKEN_DESCRIPTOR: str(token)}),
                pass_fds=(token,),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=let_ctrl_c_end_it,
            )

    @property
    def directory(self) -> Path:
        return directory_of(self.root, self.trial)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def steps(self, attempt: int = 1) -> list[int]:
        """Those in the metrics that were made in an attempt, or a later one."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if "train/loss" in line]
        return [line["step"] for line in found if line["attempt"] >= attempt]

    def wait_for_step(self, step: int, attempt: int = 1, limit_s: float = LIMIT_S) -> None:
        """Until so many steps are in the metrics."""
        ends = time.monotonic() + limit_s
        while time.monotonic() < ends:
            if max(self.steps(attempt), default=0) >= step:
                return
            assert self.process.poll() is None, self.text()
            time.sleep(0.1)
        raise AssertionError(f"step {step} never came:\n{self.text()}")

    def wait_for_text(self, text: str, times: int = 1, limit_s: float = LIMIT_S) -> None:
        """Until it has printed this so often."""
        ends = time.monotonic() + limit_s
        while self.text().count(text) < times:
            assert self.process.poll() is None and time.monotonic() < ends, self.text()
            time.sleep(0.1)

    def pids(self, name: str = "") -> dict[int, str]:
        """The processes of this run, by the name in their environment or command."""
        return {pid: role for pid, role in processes_of(self.directory).items() if role.startswith(name)}

    def entries(self) -> dict[str, Entry]:
        """What its processes entered under their names."""
        with open_name_store(open_run(self.directory), Identity("test", 0)) as names:
            return {name: parse_entry(value) for name, value in names.find().items()}

    def wait_for_entries(self, names: set[str]) -> None:
        """Until the processes, all but the trainer's, are entered under these names and no others.

        A name whose process was not scheduled for its whole time to live is gone until that process enters it again.
        """
        ends = time.monotonic() + LIMIT_S
        while (entered := {name for name in self.entries() if not name.startswith("trainer")}) != names:
            assert time.monotonic() < ends, f"{sorted(entered)} are entered instead of {sorted(names)}"
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        for pid in self.pids(name):
            with suppress(ProcessLookupError):  # it has ended with another one
                os.kill(pid, signal.SIGKILL)

    def launcher(self) -> int:
        """The only child of the guardian, which is the command's own process."""
        guardian = self.process.pid
        (child,) = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
        return int(child)

    def wait(self, limit_s: float = LIMIT_S) -> Ended:
        code = self.process.wait(limit_s)
        return Ended(code, self.text(), "", self.directory)


def let_ctrl_c_end_it() -> None:
    """What a shell starts in the background ignores it, and so would everything that is started from there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(
    root: Path, *words: str, trial: str = "t", config: str = "grpo.yaml", prefix: Sequence[str] = (), **more: str
) -> Iterator[Running]:
    one = Running(root, words, trial, config, prefix, **more)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGKILL)
            one.process.wait(120)


def processes_of(directory: Path) -> dict[int, str]:
    """pid -> role/index of everything that was started for a run; zombies do not count."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = dict(part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part)
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, UnicodeDecodeError):
            continue
        if variables.get("AREAL_LIKE_RUN_DIR") == str(directory) and state != "Z":
            found[int(entry.name)] = variables.get("AREAL_LIKE_PROCESS", "?")
    return found


def wait_until_gone(directory: Path, limit_s: float = 60.0) -> dict[int, str]:
    """What is left of a run's processes after so long."""
    ends = time.monotonic() + limit_s
    left = processes_of(directory)
    while left and time.monotonic() < ends:
        time.sleep(0.1)
        left = processes_of(directory)
    return left


def listening_ports(pids: Iterable[int]) -> set[int]:
    """The ports on which these processes wait for calls."""
    return {port for addresses in listening(pids).values() for _, port in addresses}


def left_behind(directory: Path, ports: set[int], limit_s: float = 60.0) -> list[str]:
    """What is still there of a run that ended, in words: processes, ports, shared memory."""
    ends = time.monotonic() + limit_s
    while True:
        left = [f"process {pid} ({role})" for pid, role in processes_of(directory).items()]
        left += [f"port {port}" for port in ports & {port for _, port in listening_sockets().values()}]
        left += ["shared memory"] if shared_memory(directory) else []
        if not left or time.monotonic() > ends:
            return left
        time.sleep(0.1)


def shared_memory(directory: Path) -> bool:
    """Whether the run has anything there."""
    return memory_of(directory).exists()


def memory_of(directory: Path) -> Path:
    return memory_folder(json.loads((directory / "run.json").read_text())["run_id"])
