"""A scorer of reasoning-gym that evaluates answers: it runs in the sandbox."""

import json
import math
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from areal_like.data.tasks import scorer_server
from areal_like.data.tasks.evaluating_scorers import PACKAGE
from areal_like.data.tasks.readable_answers import readable
from areal_like.process.errors import InfrastructureError
from areal_like.process.sandbox import seccomp, system_calls
from areal_like.process.sandbox.base import End, SandboxError, SandboxLimits
from areal_like.process.sandbox.sandbox import PYTHON, Sandbox
from areal_like.process.sandbox.sandboxed_server import SandboxedServer, ServerEnded

WALL_S, CPU_S, MEMORY_BYTES = 10.0, 5, 1 << 30
"""Of an answer."""
PROGRAM = "scorer_server.py"
START = "import sys; sys.path.append('.'); import scorer_server; scorer_server.main()"


class SandboxedScorer:
    """Starts its program with the first answer, or before, with `prepare`."""

    def __init__(self, dataset: str, arguments: dict[str, Any], wall_s: float = WALL_S, cpu_s: int = CPU_S) -> None:
        """The limits are those of an answer."""
        self._dataset, self._arguments, self._wall_s, self._cpu_s = dataset, arguments, wall_s, cpu_s
        self._server: SandboxedServer | None = None

    def prepare(self) -> None:
        """Where this fails, the first answer fails too."""
        try:
            self._server = self._server or self._start()
        except SandboxError:
            return

    def score(self, answer: str, puzzle: dict[str, Any]) -> float:
        """From 0 to 1. An answer with code of its own is scored as one that cannot be read; one that exceeds a limit or
        ends its process is a 0. Raises ValueError where the scorer
        cannot read the puzzle's own answer, and InfrastructureError. The puzzle goes with it, since a few puzzles
        depend on the hashes of a process."""
        self._server = self._server or self._start()
        try:
            reply = self._server.ask(json.dumps({"answer": readable(answer), "puzzle": repr(puzzle)}).encode())
        except ServerEnded as ended:
            self.close()
            if ended.result.is_starved:
                time_s = f"{self._wall_s:g} s, but waited {ended.result.starved_s:.1f} s for a processor"
                raise InfrastructureError(f"the scorer of {self._dataset} took {time_s}") from ended
            if ended.result.end is End.EXIT:
                reason = ended.result.stderr.decode("utf-8", "replace").strip()[-500:]
                raise InfrastructureError(f"the scorer of {self._dataset} {ended}: {reason}") from ended
            return 0.0
        return self._value(reply)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _value(self, reply: bytes) -> float:
        """What evaluated an answer is not trusted."""
        try:
            found = json.loads(reply)
            if "broken" in found:
                reason = str(found["broken"])
                raise ValueError(f"the scorer of {self._dataset} fails with the answer of the puzzle: {reason}")
            value = float(found["value"])
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, OverflowError, RecursionError):
            return 0.0
        return value if math.isfinite(value) and 0 <= value <= 1 else 0.0

    def _start(self) -> SandboxedServer:
        paths = package_folders()
        order = {
            "dataset": self._dataset,
            "arguments": self._arguments,
            "paths": paths,
            "cpu_s": self._cpu_s,
            "memory_bytes": MEMORY_BYTES,
            "filter": seccomp.build_compute_filter().hex(),
        }
        files = {scorer_server.ORDER: json.dumps(order), PROGRAM: _source(scorer_server)}
        for module in (seccomp, system_calls):
            files[f"{module.__name__.replace('.', '/')}.py"] = _source(module)
        # Its CPU time is that of all answers, as it forks for each; all its processes share the rest.
        limits = SandboxLimits(wall_s=self._wall_s, cpu_s=1e6, memory_gb=4.0, files_mb=1.0)
        return SandboxedServer(Sandbox(limits, readable=paths), [*PYTHON, "-c", START], files)


def package_folders() -> list[str]:
    """Where the package and what it imports are installed."""
    spec = find_spec(PACKAGE)
    own = [] if spec is None or spec.origin is None else [str(Path(spec.origin).parents[1])]
    installed = sysconfig.get_paths()
    return list(dict.fromkeys([*own, installed["purelib"], installed["platlib"]]))


def _source(module: Any) -> str:
    return Path(module.__file__).read_text(encoding="utf-8")
