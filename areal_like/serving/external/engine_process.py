"""An engine's process: started so that it sees our package and nothing else of ours, heard, and ended with all that
it has started."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import areal_like
from areal_like.process.errors import Failure
from areal_like.process.process_tree import become_subreaper, kill_descendants, reap_orphans
from areal_like.process.shared_segments import SegmentRecorder
from areal_like.process.spawn import spawn
from areal_like.serving.external.engine_log import decode_line, find_error, reports_port_in_use

POLL_S = 0.05
TERMINATE_S = 2.0
"""Less than the launcher gives this process itself."""
OUTPUT_END_S = 0.3
EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM)
"""What it said before has nothing to do with these."""
KEPT_LINES, TAIL_LINES = 2000, 100
IMPORT_FOLDER = "engine-imports"


class EngineProcess:
    """One start of the engine. What it prints goes to this process's own output, and so into the log of the server.
    There is one at a time: what is below this process is the engine's."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], cwd: Path, record: Path) -> None:
        """`record`: where it is written down what the engine makes in shared memory."""
        become_subreaper()  # or what the engine leaves behind would not be found
        self._segments = SegmentRecorder(record)
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        try:
            self._popen = spawn(
                list(command),
                {**os.environ, **variables},
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                dies_with_parent=True,
            )
        except OSError as fault:
            raise Failure(f"{command[0]} cannot be started: {fault.strerror or fault}") from fault
        self._reader = threading.Thread(target=self._read_output, name="engine's words", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def ended(self) -> int:
        """Its exit code, when it has one; negative for a signal."""
        while (code := self._popen.poll()) is None:
            reap_orphans({self.pid})
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self._reader.join, OUTPUT_END_S)
        return code

    def failure_text(self, code: int) -> str:
        """How it ended, and why by its own account."""
        if code >= 0:
            return f"ended with exit code {code}: {find_error(list(self.lines))}"
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        if -code in EXTERNAL_SIGNALS:
            return f"{how}, by somebody else or because the machine has run out of memory"
        return f"{how}; its last words: {find_error(list(self.lines)[-TAIL_LINES:])}"

    @property
    def port_was_taken(self) -> bool:
        return reports_port_in_use(list(self.lines)[-TAIL_LINES:])

    async def end(self) -> None:
        """With a moment to end by itself; then at once, with all that it started and all that it made."""
        await asyncio.to_thread(self._segments.look)
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            until = time.monotonic() + TERMINATE_S
            while self._popen.poll() is None and time.monotonic() < until:
                await asyncio.sleep(POLL_S)
        self._segments.close()
        stuck = await asyncio.to_thread(kill_descendants)
        await asyncio.to_thread(self._segments.remove)
        if stuck:
            print(f"processes that would not die: {stuck}", file=sys.stderr, flush=True)
        await asyncio.to_thread(self._reader.join, OUTPUT_END_S)

    def _read_output(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as output:
            for line in output:
                self.lines.append(decode_line(line))
                try:
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
                except OSError:
                    continue  # nobody reads the log any more; the engine must not stand still for that


def import_folder(run_dir: Path) -> Path:
    """For the engine's PYTHONPATH: our package is in it, and none of the libraries beside it, which are of other
    versions than the engine's own."""
    folder = run_dir / IMPORT_FOLDER
    folder.mkdir(exist_ok=True)
    package, link = Path(areal_like.__file__).resolve().parent, folder / areal_like.__name__
    if not link.is_symlink() or link.resolve() != package:
        new = folder / f".{os.getpid()}"
        new.symlink_to(package)
        new.replace(link)
    return folder
