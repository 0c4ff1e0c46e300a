"""The process of an engine: start, output, and the end of all processes that it started."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import areal_like
from areal_like.process.child_process import ChildProcess
from areal_like.process.errors import Failure
from areal_like.process.identity import SECRETS, TOKEN_DESCRIPTOR, passed_token
from areal_like.process.keeper import kept_command
from areal_like.process.process_tree import become_subreaper, kill_descendants
from areal_like.process.scrubbed_output import ScrubbedBytes
from areal_like.process.shared_segments import SegmentRecorder
from areal_like.process.temporary_folders import ENGINE, make_temporary_folder, remove_temporary_folder
from areal_like.serving.engines.external.engine_log import decode_line, find_error, reports_kill, reports_port_in_use

POLL_S = 0.05
TERMINATE_S = 2.0
KEEPER_S = 0.5
"""What the keeper may take to kill what is left. Both are less than the launcher's own timeout for this process."""
OUTPUT_END_S = 0.3
EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM)
"""Signals for which the engine's last output is not the reason."""
KEPT_LINES, TAIL_LINES, MOST_OF_LINE = 2000, 100, 1 << 20
IMPORT_FOLDER = "engine-imports"
MAX_SOCKET_FOLDER = 60
"""The name of a socket has at most 107 bytes; engines call theirs by ids of 36 characters and a few more."""
NEW_LINK, LEFTOVER_AGE_S = ".", 600.0


class EngineProcess:
    """One start of the engine, under a keeper. Its output is copied, without secrets, to this process's output, which
    is the log of the server. One at a time: all descendants of this process belong to the engine."""

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], cwd: Path, record: Path, secret: str | None = None
    ) -> None:
        """`record`: file that lists what the engine creates in shared memory. `secret`: the run's token, for an engine
        that takes it from a descriptor."""
        become_subreaper()  # if the keeper is killed, what it kept falls to this process
        if shutil.which(command[0]) is None:
            fault = errno.EACCES if Path(command[0]).exists() else errno.ENOENT
            raise Failure(f"{command[0]} cannot be started: {os.strerror(fault)}")
        self._segments = SegmentRecorder(record)
        self._temporary = make_temporary_folder(ENGINE, MAX_SOCKET_FOLDER)
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        with passed_token(secret or "") as descriptor:
            passed = {} if secret is None else {TOKEN_DESCRIPTOR: str(descriptor)}
            self._keeper = ChildProcess(
                kept_command(command, TERMINATE_S),
                {**_environment(self._temporary), **variables, **passed},
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[descriptor] if passed else [],
                dies_with_parent=True,
            )
        self._reader = threading.Thread(target=self._read_output, name="engine output", daemon=True)
        self._reader.start()

    async def ended(self) -> int:
        """Waits for the end; returns the exit code, negative for a signal."""
        while (code := self._keeper.exit_code()) is None:
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self._reader.join, OUTPUT_END_S)
        return code

    def failure_text(self, code: int) -> str:
        """How it ended, with the error from its output."""
        if code >= 0:
            return f"ended with exit code {code}: {find_error(list(self.lines))}"
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        if -code in EXTERNAL_SIGNALS:
            used = self._keeper.usage.text
            return f"{how}, by another process or because the machine has run out of memory; it had used {used}"
        return f"{how}; its last output: {find_error(list(self.lines)[-TAIL_LINES:])}"

    def was_killed(self, code: int) -> bool:
        """From outside or for want of memory: it, or a process that it has started and cannot do without."""
        return -code in EXTERNAL_SIGNALS or reports_kill(list(self.lines))

    @property
    def port_was_taken(self) -> bool:
        return reports_port_in_use(list(self.lines)[-TAIL_LINES:])

    async def end(self) -> None:
        """Sends SIGTERM, kills all its processes after `TERMINATE_S`, and removes its shared memory."""
        await asyncio.to_thread(self._segments.poll)
        self._keeper.signal(signal.SIGTERM)
        self._keeper.signal(signal.SIGCONT)  # a stopped keeper would not pass it on
        deadline = time.monotonic() + TERMINATE_S + KEEPER_S
        while self._keeper.exit_code() is None and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        self._segments.close()
        stuck = await asyncio.to_thread(kill_descendants)
        await asyncio.to_thread(self._segments.remove)
        await asyncio.to_thread(remove_temporary_folder, self._temporary)
        if stuck:
            print(f"processes that could not be killed: {stuck}", file=sys.stderr, flush=True)
        await asyncio.to_thread(self._reader.join, OUTPUT_END_S)

    def _read_output(self) -> None:
        scrubber = ScrubbedBytes()
        with self._keeper.stdout as output:
            for line in iter(partial(output.readline, MOST_OF_LINE), b""):
                self._pass_on(scrubber.read(line))
        self._pass_on(scrubber.rest())

    def _pass_on(self, line: bytes) -> None:
        if not line:
            return
        self.lines.append(decode_line(line))
        with contextlib.suppress(OSError):  # the log has no reader any more; the engine must not block on its output
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def _environment(temporary: str) -> dict[str, str]:
    """This process's, with a folder for what the engine leaves behind when it is killed, such as its sockets, unless
    their names would be too long there. torch keeps its cache."""
    variables = {name: value for name, value in os.environ.items() if name not in SECRETS}
    if len(temporary) > MAX_SOCKET_FOLDER:
        return variables
    cache = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    return {"TORCHINDUCTOR_CACHE_DIR": cache, **variables, "TMPDIR": temporary}


def import_folder(run_dir: Path) -> Path:
    """A folder for the engine's PYTHONPATH with our package alone: the libraries beside it have other versions than the
    engine's."""
    folder = run_dir / IMPORT_FOLDER
    folder.mkdir(exist_ok=True)
    package, link = Path(areal_like.__file__).resolve().parent, folder / areal_like.__name__
    if not link.is_symlink() or link.resolve() != package:
        _remove_leftovers(folder)
        temporary = folder / f"{NEW_LINK}{os.getpid()}"
        temporary.symlink_to(package)
        temporary.replace(link)
    return folder


def _remove_leftovers(folder: Path) -> None:
    """Links of processes that were killed before they renamed them."""
    for link in folder.glob(f"{NEW_LINK}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - link.lstat().st_mtime > LEFTOVER_AGE_S:
                link.unlink()
