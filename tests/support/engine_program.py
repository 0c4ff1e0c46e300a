"""An external program for a test; afterwards no process and nothing in /dev/shm is left."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_like.process.process_tree import (
    PAUSE_S,
    RESOURCE_TRACKER_S,
    all_processes,
    become_subreaper,
    is_resource_tracker,
    kill,
)
from areal_like.process.shared_segments import SegmentRecorder

HANGS_S = 120.0


class Program:
    """Starts it once, in a new session."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, output: Any) -> None:
        become_subreaper()  # or what it leaves behind could not be collected
        self._segments = SegmentRecorder(folder / "segments.json")
        self._popen = subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def end(self, gentle_s: float = 0.0) -> None:
        """With so long to end by itself; then at once. Python's resource trackers may do their work before."""
        self._segments.poll()
        if gentle_s and self.is_alive:
            self._popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(gentle_s)
        began = time.monotonic()
        while alive := self._alive():
            assert time.monotonic() < began + HANGS_S, f"processes that do not end: {alive}"
            trackers_too = time.monotonic() > began + RESOURCE_TRACKER_S
            kill(pid for pid in alive if trackers_too or not is_resource_tracker(pid))
            time.sleep(PAUSE_S)
        self._segments.close()
        self._segments.remove()

    def _alive(self) -> list[int]:
        """Processes of its session that still run."""
        left = [seen for seen in all_processes().values() if seen.session == self._popen.pid]
        for seen in left:
            if seen.state == "Z" and seen.parent == os.getpid() and seen.pid != self._popen.pid:
                os.waitpid(seen.pid, 0)
        self._popen.poll()  # its own end is for itself to collect: it warns of it otherwise
        return [seen.pid for seen in left if seen.state != "Z"]
