"""Checks this package on a GPU and measures it there, part by part, each in a process of its own.

    python -m tests.gpu.check --out DIR                   # all parts that fit into ten minutes
    python -m tests.gpu.check --out DIR                   # again: the parts that are left, until none is
    python -m tests.gpu.check --out DIR --parts head,vllm # these, also if they have run
    python -m tests.gpu.check --out DIR --parts update --set actor.compile=null   # with an override of the run
    python -m tests.gpu.check --out DIR --small           # tiny sizes, also without a GPU: tests the program

DIR/checks.json has every figure with what was aimed at and the reason of each failure, DIR/summary.txt the same as a
table, DIR/output.txt what the parts printed. Exit code 1 if a part of this call failed or a limit was exceeded; an aim
that is missed is no failure.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.config.allocation.machine import detect_machine  # noqa: E402
from areal_like.process.keeper import kept_command  # noqa: E402
from tests.gpu.parts import PARTS, Part, by_name  # noqa: E402
from tests.gpu.report import FAILED, RUNNING, write_json  # noqa: E402
from tests.gpu.summary import summary  # noqa: E402

CALL_LIMIT_S = 570.0
TO_CLEAN_UP_S = 20.0
"""What a part gets to end the processes that it has started."""
TO_KILL_S = 5.0
"""What its keeper takes to kill those that are left."""
POLL_S = 0.5
KEPT_OUTPUT = 20_000
"""Characters of a part's output that are kept."""


def has_all_fields(part: Any) -> bool:
    return isinstance(part, dict) and {"status", "reason", "figures", "facts"} <= part.keys()


class Results:
    """What is known of all parts, in the files of `out`."""

    def __init__(self, out: Path) -> None:
        """Raises OSError, and ValueError for a file of results that is damaged."""
        out.mkdir(parents=True, exist_ok=True)
        self._out = out
        self._file = out / "checks.json"
        self.parts: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.is_file() else {}
        if not isinstance(self.parts, dict) or not all(map(has_all_fields, self.parts.values())):
            raise ValueError(f"{self._file} has other content than results")

    def put(self, name: str, content: dict[str, Any]) -> None:
        self.parts[name] = content
        write_json(self._file, self.parts)
        (self._out / "summary.txt").write_text(summary(self.parts), encoding="utf-8")

    def add_output(self, name: str, output: str) -> None:
        with (self._out / "output.txt").open("a", encoding="utf-8") as log:
            log.write(f"=== {name}\n{output[-KEPT_OUTPUT:]}\n")


def command(part: Part, file: Path, small: bool, words: Sequence[str]) -> list[str]:
    more = [*(["--small"] if small else []), *(f"--set={word}" for word in words)]
    return [sys.executable, "-m", "tests.gpu.part", part.name, str(file), *more]


def kept_process(words: list[str], sink: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Under a keeper, which kills all that it has started if this process is killed: what would be left computes beside
    the parts of the next call."""
    found = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        kept_command(words, TO_CLEAN_UP_S),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run_part(part: Part, results: Results, small: bool, limit_s: float, words: Sequence[str] = ()) -> bool:
    """In a process, which is ended with all that it has started after `limit_s`. Its figures are kept as they come.
    Returns whether it failed."""
    with tempfile.TemporaryDirectory(prefix="gpu-part-") as name:
        file, output = Path(name) / "part.json", Path(name) / "output"
        began = time.monotonic()
        with output.open("wb") as sink:
            process = kept_process(command(part, file, small, words), sink)
        seen = 0.0
        try:
            while process.poll() is None and time.monotonic() - began < limit_s:
                time.sleep(POLL_S)
                if file.is_file() and (changed := file.stat().st_mtime) != seen:
                    seen = changed
                    results.put(part.name, json.loads(file.read_text()))
            is_over_time = process.poll() is None
        finally:
            _end(process)
        content = json.loads(file.read_text()) if file.is_file() else _nothing(part)
        if content["status"] == RUNNING:
            how = f"not done after {limit_s:.0f} s" if is_over_time else f"its process ended with {process.returncode}"
            end = "\n".join(output.read_text(errors="replace").splitlines()[-8:])
            content |= {"status": FAILED, "reason": f"{how}\n{end}"}
        content["took_s"] = round(time.monotonic() - began, 1)
        results.add_output(part.name, output.read_text(errors="replace"))
        results.put(part.name, content)
    return bool(content["status"] == FAILED)


def _nothing(part: Part) -> dict[str, Any]:
    return {"part": part.name, "status": RUNNING, "reason": None, "figures": [], "facts": {}}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks first: a run or a server that it has started is in a session of its own, which it must end itself."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TO_CLEAN_UP_S + TO_KILL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def seconds(text: str) -> float:
    if not (value := float(text)) > 0:  # not nan either
        raise ValueError(text)
    return value


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder of the results")
    parser.add_argument("--parts", metavar="A,B", help=f"which parts: {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--limit", type=seconds, default=CALL_LIMIT_S, metavar="S", help="seconds of this call")
    parser.add_argument("--small", action="store_true", help="tiny sizes, also without a GPU")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="an override for rl_step and for whole runs"
    )
    arguments = parser.parse_args(argv)
    try:
        arguments.wanted = by_name(arguments.parts)
    except ValueError as unknown:
        parser.error(str(unknown))
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = arguments_of(argv)
    wanted: list[Part] = arguments.wanted
    if not arguments.small and not (machine := detect_machine()).num_gpus:
        print(f"there is no GPU ({machine.how}); --small runs tiny sizes on the CPU", file=sys.stderr)
        return 2
    ends, failed = time.monotonic() + arguments.limit, False
    try:
        results = Results(arguments.out)
    except (OSError, ValueError) as fault:
        print(f"--out: {arguments.out} cannot be used ({fault}); choose another folder", file=sys.stderr)
        return 2
    if arguments.parts is None:
        wanted = [part for part in wanted if results.parts.get(part.name, {}).get("status") in (None, RUNNING)]
    left: list[str] = []
    for part in wanted:
        rest = ends - time.monotonic()
        if left or (part is not wanted[0] and rest < part.limit_s):
            left.append(part.name)
            continue
        print(f"{part.name}: {part.about} ...", flush=True)
        failed = run_part(part, results, arguments.small, min(part.limit_s, rest), arguments.set) or failed
    print(summary(results.parts), end="")
    if left:
        print(f"no time left for {', '.join(left)}: call it again with the same --out")
    print(f"written to {arguments.out}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
