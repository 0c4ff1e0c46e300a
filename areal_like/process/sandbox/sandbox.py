"""`Sandbox` runs programs that are not trusted, with limits. Which kind it is, `reward.sandbox` says."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache

from areal_like.config.sections.reward import SANDBOXES
from areal_like.process.sandbox.base import Backend, SandboxError, SandboxLimits, SandboxResult
from areal_like.process.sandbox.bubblewrap import Bubblewrap
from areal_like.process.sandbox.places import INTERPRETER, PROGRAM_ENV
from areal_like.process.sandbox.program import SandboxedProgram, wait_for
from areal_like.process.sandbox.rlimits import ResourceLimits

SANDBOX = "AREAL_LIKE_SANDBOX"
"""The variable by which the processes of a run's rewards know `reward.sandbox`."""
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Bubblewrap(), ResourceLimits())}
PYTHON = (INTERPRETER, "-I", "-B")
"""Runs Python programs there, without variables, packages of the user, and files of bytecode."""
MAIN = "main.py"


class Sandbox:
    """`Sandbox().run_python("print(input())", stdin=b"3").stdout`."""

    def __init__(
        self, limits: SandboxLimits | None = None, *, kind: str | None = None, readable: Sequence[str] = ()
    ) -> None:
        """`kind` is by default the one of the run, bubblewrap outside of a run. `readable`: files and folders that
        programs can read, besides those of the system and of Python."""
        self.kind = name = kind or os.environ.get(SANDBOX) or SANDBOXES[0]
        if name not in BACKENDS:
            raise ValueError(f"{name!r} is not a kind of sandbox; there are {', '.join(BACKENDS)}")
        self._backend, self.limits, self._readable = BACKENDS[name], limits or SandboxLimits(), tuple(readable)
        if reason := self._backend.missing():
            raise SandboxError(f"the sandbox {name} cannot be used: {reason}; {other_sandbox(name)}")

    def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        files: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> SandboxResult:
        """Runs a program to its end. It starts in a folder that has the `files` and is the only one that it can write;
        afterwards nothing of it is left. Raises SandboxError if no program can be run."""
        with closing(self.start(command, stdin=stdin, files=files, limits=limits)) as program:
            return wait_for(program)

    def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> SandboxResult:
        """Runs a Python program. It can import the standard library, and what is installed beside the interpreter of
        the virtual environment."""
        return self.run([*PYTHON, MAIN], stdin=stdin, files={**(files or {}), MAIN: code}, limits=limits)

    def start(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        files: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
        pass_fds: Sequence[int] = (),
    ) -> SandboxedProgram:
        """A program that runs until it is closed, for `wait_for`. `pass_fds` are descriptors that it inherits."""
        orders = {"command": list(command), "files": dict(files or {}), "env": PROGRAM_ENV}
        limits = limits or self.limits
        return SandboxedProgram(self._backend.open_cell(limits, self._readable), limits, orders, stdin, pass_fds)


def other_sandbox(kind: str, place: str = "") -> str:
    """What to do where this one does not work. `place`: what the key begins with."""
    other = next(each for each in SANDBOXES if each != kind)
    weaker = ", the weaker one," if other != SANDBOXES[0] else ""
    return f"{place}reward.sandbox={other}{weaker} has other needs (docs/sandbox.md)"


@cache
def sandbox_problem(kind: str) -> str:
    """Why a program cannot run in it on this machine, which is tried; "" if it can."""
    if reason := BACKENDS[kind].missing():
        return f"the sandbox {kind} cannot be used: {reason}"
    try:
        result = Sandbox(kind=kind).run([*PYTHON, "-c", "print(6 * 7)"])
    except (SandboxError, OSError) as fault:
        return str(fault)
    answer = result.stdout.decode("utf-8", "replace").strip()
    return "" if answer == "42" else f"a program in the sandbox {kind} printed {answer!r} instead of 42"
