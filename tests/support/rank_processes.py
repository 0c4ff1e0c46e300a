"""Several trainer ranks for a test, forked from one process with all imports done."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

LIMIT_S = 150
FREED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(body: str, calls: Mapping[int, list[str]]) -> subprocess.Popen[str]:
    """`body` is `module:function`, called as `function(world, *words)` by every rank of worlds of each size in
    `calls`, one world after the other."""
    kept = {name: value for name, value in os.environ.items() if name not in FREED}
    command = [
        sys.executable,
        "-m",
        "tests.support.rank_processes",
        body,
        json.dumps({str(k): v for k, v in calls.items()}),
    ]
    return subprocess.Popen(
        command,
        env={**kept, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> None:
    try:
        errors = started.communicate(timeout=LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        started.kill()
        raise
    assert started.returncode == 0, errors


def _rank(body: str, rank: int, size: int, port: int, words: list[str]) -> None:
    from areal_like.training.world import open_world

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    module, _, name = body.partition(":")
    try:
        world = open_world(60)
        getattr(import_module(module), name)(world, *words)
        world.close()
    except BaseException:
        print(f"rank {rank} of {size}", file=sys.stderr)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # as a trainer ends


def main() -> int:
    body, calls = sys.argv[1], json.loads(sys.argv[2])
    import_module(body.partition(":")[0])
    fork = multiprocessing.get_context("fork")
    for size, words in calls.items():
        port = free_port()
        ranks = [fork.Process(target=_rank, args=(body, rank, int(size), port, words)) for rank in range(int(size))]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
