"""PackageProcess: an environment of verifiers in a process of its own, with the Python where it is installed."""

import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.verifiers import package_of
from areal_like.data.exact_json import dump_json, parse_json
from areal_like.data.user_code import config_error
from areal_like.process.child_process import ChildProcess
from areal_like.process.identity import shown_variables
from areal_like.process.keeper import kept_command
from areal_like.process.proxy_variables import around_proxy

HOST = Path(__file__).parent / "host"
LIMIT_KEY = "rollout.setup_timeout"
SHORTEST_WAIT_S = 0.01
END_GRACE_S, END_LIMIT_S = 1.0, 5.0

log = logging.getLogger(__name__)

_parked: dict[str, "PackageProcess"] = {}
"""Processes that have given their rows, until they are taken to play them."""


class HostedPackage(NamedTuple):
    """An environment as its process needs it. `folders`: where modules are searched after the installed ones, and that
    of the experiment first. `limit_s`: to load it, and to give the rows of a split."""

    task: str
    args: dict[str, Any]
    python: str | None
    folders: tuple[str, ...]
    limit_s: float | None = None

    @property
    def key(self) -> str:
        """Equal for equal environments."""
        return json.dumps(self._replace(limit_s=None))

    @property
    def name(self) -> str:
        return self.task.partition(":")[2]


class PackageProcess:
    """Is loaded and asked for rows by one caller at a time, and then played by who takes its socket."""

    def __init__(self, package: HostedPackage) -> None:
        self.package = package
        self.wire, theirs = socket.socketpair()
        self._deadline: float | None = None
        self._lines = self.wire.makefile("rb")
        with theirs:
            descriptor = theirs.fileno()
            self._process = ChildProcess(
                kept_command([*_python(package), str(HOST), str(descriptor)], END_GRACE_S),
                _variables(package),
                stdout=2,
                pass_fds=(descriptor,),
            )

    def load(self) -> None:
        """Raises ConfigError with the keys of a task."""
        package = package_of(self.package.task)
        assert package is not None, "configurations have names of packages"
        self._begin()
        request = {"do": "load", "id": self.package.name, "module": package.module, "args": self.package.args}
        self._send(request | {"folders": self.package.folders})
        reply = self._receive()
        if "problem" in reply:
            key = "task.args" if reply["problem"].startswith("args: ") else "task.name"
            raise self._failed(key, "cannot be loaded: " + reply["problem"].removeprefix("args: "), reply["trace"])

    def rows(self, held_out: bool) -> list[dict[str, Any]]:
        """Raises ConfigError."""
        self._begin()
        self._send({"do": "rows", "held_out": held_out})
        rows: list[dict[str, Any]] = []
        while "row" in (reply := self._receive()):
            rows.append(reply["row"])
        if "problem" in reply:
            raise self._failed("task.name", f"gave no rows: {reply['problem']}", reply["trace"])
        return rows

    def kill(self) -> None:
        """Begins to kill it with everything that it has started."""
        self._process.signal(signal.SIGTERM)
        self._process.signal(signal.SIGCONT)  # the environment may have stopped its keeper

    def close(self) -> None:
        """Returns when it has ended, which it does when its socket is closed."""
        self._lines.close()
        self.wire.close()
        if self._process.wait(END_LIMIT_S) is None:
            self.kill()
        if self._process.wait(END_GRACE_S + END_LIMIT_S) is None:
            self._process.kill()

    @property
    def ending(self) -> str:
        """How it has ended."""
        code = self._process.wait(END_LIMIT_S)
        if code is None:
            return "it was closed"
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def _begin(self) -> None:
        limit_s = self.package.limit_s
        self._deadline = None if limit_s is None else time.monotonic() + limit_s

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self.wire.sendall(dump_json(request) + b"\n")
        except OSError as fault:
            raise self._ended() from fault

    def _receive(self) -> dict[str, Any]:
        if self._deadline is not None:
            self.wire.settimeout(max(SHORTEST_WAIT_S, self._deadline - time.monotonic()))
        try:
            line = self._lines.readline()
        except TimeoutError as fault:
            self.close()
            late = f"took longer than {self.package.limit_s:g} s to be loaded ({LIMIT_KEY}: raise it)"
            raise self._failed("task.name", late) from fault
        except OSError:
            line = b""
        if not line:
            raise self._ended()
        return dict(parse_json(line))

    def _ended(self) -> Exception:
        return self._failed("task.name", f"ended with {self.ending} while it was loaded; its log says more")

    def _failed(self, key: str, what: str, trace: str = "") -> Exception:
        error = config_error(key, f"the environment {self.package.name} {what}")
        if trace:
            error.add_note(trace)
        return error


def loaded_process(package: HostedPackage) -> PackageProcess:
    process, began = PackageProcess(package), time.monotonic()
    log.info("environment %s is loaded by %s", package.name, _place(package))
    try:
        process.load()
    except BaseException:
        process.close()
        raise
    log.info("environment %s was loaded in %.1f s", package.name, time.monotonic() - began)
    return process


def park(process: PackageProcess) -> None:
    """Keeps it for who asks for the same package; only one."""
    if process.package.key in _parked:
        process.close()
    else:
        _parked[process.package.key] = process


def take(package: HostedPackage) -> PackageProcess | None:
    """One that is loaded already, if there is one."""
    return _parked.pop(package.key, None)


def _python(package: HostedPackage) -> list[str]:
    """Variables of this Python are not for another one."""
    if package.python is None:
        return [sys.executable]
    return ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", _place(package)]


def _place(package: HostedPackage) -> str:
    return os.path.abspath(Path(package.folders[-1]) / Path(package.python or sys.executable).expanduser())


def _variables(package: HostedPackage) -> dict[str, str]:
    """With the programs beside its Python, such as uv."""
    kept = shown_variables(package.key.encode())
    path = os.pathsep.join((os.path.dirname(_place(package)), kept.get("PATH", os.defpath)))
    return {**kept, "PATH": path, **around_proxy(kept)}
