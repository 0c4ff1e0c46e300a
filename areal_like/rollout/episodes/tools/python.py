"""The tool `python`: programs in the sandbox."""

from areal_like.process.sandbox.base import End, SandboxError, SandboxLimits
from areal_like.process.sandbox.sandbox import Sandbox, sandbox_problem


class PythonTool:
    """Runs a Python program and returns what it prints. Each program begins anew, without network."""

    def __init__(self, timeout_s: float, kind: str | None = None) -> None:
        """Raises SandboxError if there is no sandbox of this kind here."""
        self._sandbox = Sandbox(SandboxLimits(wall_s=timeout_s, cpu_s=timeout_s), kind=kind)
        if reason := sandbox_problem(self._sandbox.kind):
            raise ValueError(reason)

    def __call__(self, code: str) -> str:
        result = self._sandbox.run_python(code)
        if result.is_starved:
            raise SandboxError(f"a program waited {result.starved_s:.1f} s for a processor, and its time ran out")
        printed = result.stdout.decode("utf-8", "replace")
        if result.is_success:
            return printed.rstrip() or "(it printed nothing)"
        reason = "" if result.end is End.EXIT else f"ended by its limit of {result.end}\n"
        raise RuntimeError(f"{reason}{printed}{result.stderr.decode('utf-8', 'replace')}".strip() or "it failed")
