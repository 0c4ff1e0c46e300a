"""Runs in the sandbox: scores answers to the puzzles of reasoning-gym, each in a fork that can do nothing but compute.

The standard library and that package only, as nothing else can be seen there.
"""

import ctypes
import json
import os
import resource
import sys
from ast import literal_eval
from functools import partial
from typing import Any

from areal_like.process.sandbox.seccomp import apply_filter

ORDER = "order.json"
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
OPEN_FILES = 64
MAX_REPLY = 1 << 12
CONFINED = b"+"
"""Begins what the process of an answer writes, so that none of its failures passes for that of the machine."""


def main() -> None:
    with open(ORDER, encoding="utf-8") as file:
        order = json.load(file)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    sys.path[:] = [*filter(os.path.isabs, sys.path), *order["paths"]]  # nothing that an answer could write
    import reasoning_gym  # type: ignore[import-untyped]

    puzzles = reasoning_gym.create_dataset(order["dataset"], **order["arguments"])
    wire = int(sys.argv[1])
    os.write(wire, b"ready\n")
    with open(wire, "rb", closefd=False) as lines:
        for line in lines:
            request = json.loads(line)
            work = partial(score, puzzles, request["answer"], literal_eval(request["puzzle"]))
            os.write(wire, _in_fork(work, order) + b"\n")


def _in_fork(work: Any, order: dict[str, Any]) -> bytes:
    """What `work` returns, as JSON; empty if its process ended before. Raises RuntimeError if it could not begin."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            wire = _confine(writer, order)
            os.write(wire, CONFINED)
            os.write(wire, json.dumps(work()).encode())
        except BaseException as fault:
            os.write(writer, repr(fault).encode())
        finally:
            os._exit(0)
    os.close(writer)
    reply = b""
    while len(reply) < MAX_REPLY and (data := os.read(reader, MAX_REPLY)):
        reply += data
    os.close(reader)
    os.waitpid(pid, 0)
    if not reply.startswith(CONFINED):
        raise RuntimeError(f"the process of an answer could not begin: {reply!r}")
    return reply.removeprefix(CONFINED).replace(b"\n", b" ")


def _confine(writer: int, order: dict[str, Any]) -> int:
    """Of all open files the pipe is left, whose number it returns; no process can be started, signalled or replaced,
    and nothing be written to files."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, writer)
    os.closerange(writer + 1, OPEN_FILES)
    for kind, limit in ((resource.RLIMIT_CPU, order["cpu_s"]), (resource.RLIMIT_DATA, order["memory_bytes"])):
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    apply_filter(ctypes.CDLL(None, use_errno=True), bytes.fromhex(order["filter"]))
    return writer


def score(puzzles: Any, answer: str, puzzle: dict[str, Any]) -> dict[str, Any]:
    """An answer that the scorer cannot read is wrong; if it cannot read the puzzle's own answer, the puzzle is at
    fault."""
    try:
        return {"value": float(puzzles.score_answer(answer, puzzle))}
    except Exception:
        try:
            if puzzle["answer"] is not None:
                puzzles.score_answer(puzzle["answer"], puzzle)
        except Exception as own:
            return {"broken": str(own)[:200]}
        return {"value": 0.0}


if __name__ == "__main__":
    main()
