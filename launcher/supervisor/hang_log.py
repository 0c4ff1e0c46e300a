"""`logs/hangs.log`: which processes were named or killed because they made no progress, when, and why."""

import threading
import time
from collections import deque
from pathlib import Path

from launcher.agent.log_rotation import rotate

FILE = "hangs.log"
MAX_WAITING = 1000
CLOSE_S = 2.0


class HangLog:
    """Is written in a thread, as what hangs may be a disk. Past `most` bytes it becomes `hangs.log.1`."""

    def __init__(self, logs: Path, most: int) -> None:
        self._path, self._most = logs / FILE, most
        self._lines: deque[str] = deque(maxlen=MAX_WAITING)
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        """While there is something to write."""

    def add(self, text: str) -> None:
        with self._lock:
            self._lines.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="hang log", daemon=True)
                self._writer.start()

    def close(self) -> None:
        """Waits a moment for what is not written yet."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(CLOSE_S)

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._lines:
                    self._writer = None
                    return
                text = "".join(self._lines)
                self._lines.clear()
            try:
                self._path.parent.mkdir(exist_ok=True)  # not of a run that was removed
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as fault:
                print(f"{self._path}: {fault}; not written: {text.rstrip()}", flush=True)
            rotate(self._path, self._most)
