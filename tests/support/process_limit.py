"""A limit on the number of processes, by the kernel, around what might start too many."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
JOIN = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execv(sys.executable, sys.argv[2:])"


@contextmanager
def process_limit(number: int) -> Iterator[Path]:
    """The file by which a process joins a group of at most this many. Skips the test where no group can be made."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {line.split(":")[1]: line.split(":", 2)[2].lstrip("/") for line in lines}
    parent = CGROUPS / "pids" / own["pids"] if "pids" in own else CGROUPS / own.get("", "")
    group = parent / f"areal-like-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(number))
    except OSError as refusal:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no group of limited processes can be made here: {refusal}")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def run_limited(number: int, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in such a group."""
    with process_limit(number) as joining:
        command = [sys.executable, "-c", JOIN, str(joining), sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)
        assert joining.read_text() == "", "processes are left"
        return done
