"""One server of a run in a separate process, without the other processes, and publications for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.load import load
from areal_like.discovery import open_name_store, parse_entry
from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import HttpError
from areal_like.process.identity import ATTEMPT, INCARNATION, PROCESS, RUN_DIR, TOKEN, Identity
from areal_like.process.run import Run, open_run
from areal_like.process.wait import NamedWait
from tests.ring.start import environment
from tests.support.commands import REPOSITORY

SECRET = "only-in-tests"
CONTROLLER = Identity("rollout", 0, attempt=1)
MODEL = "builtin:tiny-addition"


class Server:
    """Called as the controller of the run calls it."""

    def __init__(self, run: Run, caller: BlockingHttpClient, address: str) -> None:
        self.run, self.address = run, address
        self._caller = caller

    def call(self, method: str, path: str, body: object = None) -> Any:
        return self._caller.json(method, self.address, path, body)

    def refusal(self, path: str, body: object) -> tuple[int, str]:
        """What it says to what it must refuse."""
        try:
            self.call("POST", path, body)
        except HttpError as refused:
            return refused.status, refused.message
        raise AssertionError(f"{path} was not refused")


def make_run(directory: Path, *overrides: str) -> Run:
    """What the launcher writes before it starts a server."""
    directory.mkdir(parents=True)
    names = f"cluster.name_resolve.nfs_record_root={directory}/names"
    words = ["trial_name=t", "rollout.backend=embedded", "embedded.threads=1", names, *overrides]
    (directory / "config.yaml").write_text(to_yaml(load(REPOSITORY / "experiments" / "grpo.yaml", words).values))
    facts = {"run_id": directory.name, "experiment": "grpo", "folder": str(directory), "cwd": str(directory)}
    (directory / "run.json").write_text(json.dumps(facts))
    (directory / "attempt.json").write_text(json.dumps({"attempt": 1, "step": 0, "checkpoint": None}))
    return open_run(directory)


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """A server of a run that holds the model of the package, and nothing the run gave it yet."""
    run = make_run(directory)
    ours = {PROCESS: "server/0", TOKEN: SECRET, ATTEMPT: "1", INCARNATION: "1", RUN_DIR: str(directory)}
    command = [sys.executable, "-m", "areal_like.serving", "--run-dir", str(directory), "--index", "0"]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment(directory, **ours), stdout=log, stderr=log)
    try:
        with open_name_store(run, Identity("test", 0)) as names:
            address = parse_entry(names.wait("server/0", NamedWait("the server", 60, "this test"))).address
        with closing(BlockingHttpClient(CONTROLLER, SECRET)) as caller:
            yield Server(run, caller, address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (directory / "server.log").read_text()
    finally:
        process.kill()
        process.wait()


def flip_a_byte(folder: Path, tensor: str) -> None:
    """In the middle of one tensor of a publication, where it lies."""
    index = json.loads((folder / "index.json").read_bytes())
    place = next(info["bucket"] for info in index["tensors"] if info["name"] == tensor)
    path = folder / index["buckets"][place]["file"]
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(size))[tensor]["data_offsets"]
        at = 8 + size + (begin + end) // 2
        old = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([old ^ 1]), at)
