"""Server processes for external engines: small programs, or running servers of this package."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from areal_like.config.describe.yaml_text import escape_references
from areal_like.config.load import load
from areal_like.discovery import open_name_store, parse_entry
from areal_like.discovery.base import NameMissing
from areal_like.process.identity import Identity
from areal_like.process.run import open_run
from tests.support.commands import REPOSITORY
from tests.support.tiny_models import write_tiny_model

SECRET = "a secret of the run"
SERVER = Identity("server", 0)


def write_run(root: Path, *overrides: str, backend: str = "vllm") -> Path:
    """Writes a run directory as the launcher does."""
    model = root / "model"
    if not model.exists():
        write_tiny_model(model, max_position_embeddings=256)
    directory = root / "run"
    directory.mkdir()
    words = [f"rollout.backend={backend}", f"actor.path={model}", f"cluster.name_resolve.nfs_record_root={root}/names"]
    values = load(REPOSITORY / "experiments" / "grpo.yaml", ["trial_name=t", *words, *overrides]).values
    (directory / "config.yaml").write_text(yaml.safe_dump(escape_references(values)))
    facts = {"experiment": "grpo", "run_id": "run1", "folder": str(root), "cwd": str(root)}
    (directory / "run.json").write_text(json.dumps(facts))
    return directory


def environment(directory: Path, **more: str) -> dict[str, str]:
    ours = {"PYTHONPATH": str(REPOSITORY), "AREAL_LIKE_TOKEN": SECRET, "AREAL_LIKE_PROCESS": "server/0"}
    return {**os.environ, **ours, "AREAL_LIKE_RUN_DIR": str(directory), "OMP_NUM_THREADS": "1", **more}


class ExternalServerProcess:
    """A running server process; `printed` is its output with that of its engine."""

    def __init__(self, directory: Path, words: list[str], **more: str) -> None:
        self.directory = directory
        self.output = (directory / "output").open("w+b")
        command = [
            sys.executable,
            "-m",
            "areal_like.serving",
            "--run-dir",
            str(directory),
            "--index",
            "0",
        ]
        self.process = subprocess.Popen(
            [*command, *words], env=environment(directory, **more), stdout=self.output, stderr=subprocess.STDOUT
        )

    @property
    def printed(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    @property
    def note(self) -> dict[str, Any]:
        """Its failure note for the launcher."""
        path = self.directory / "logs" / "server-0.failure.json"
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content

    def code(self, limit_s: float = 120.0) -> int:
        return self.process.wait(limit_s)

    def until_printed(self, text: str, limit_s: float = 120.0) -> None:
        ends = time.monotonic() + limit_s
        while text not in self.printed:
            assert self.process.poll() is None and time.monotonic() < ends, self.printed
            time.sleep(0.02)

    def address(self, limit_s: float = 120.0) -> str:
        """Waits until it is registered."""
        ends = time.monotonic() + limit_s
        with open_name_store(open_run(self.directory), Identity("test", 0)) as names:
            while True:
                try:
                    return parse_entry(names.get(SERVER.name)).address
                except NameMissing:
                    assert self.process.poll() is None and time.monotonic() < ends, self.printed
                time.sleep(0.02)


@contextmanager
def external_server(directory: Path, *words: str, **more: str) -> Iterator[ExternalServerProcess]:
    one = ExternalServerProcess(directory, list(words), **more)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        one.output.close()


def program(source: str) -> list[str]:
    """The command of an engine with this source."""
    return ["--", sys.executable, "-u", "-c", source, "--port", "<port>"]
