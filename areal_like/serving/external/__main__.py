"""A server of a run, as the process beside an engine of others:

`python -m areal_like.serving.external --run-dir DIR --index I -- ENGINE COMMAND...`, or, for an engine that runs
already, `--attach HOST:PORT [--kind vllm|sglang|embedded]` in place of the command.
"""

import argparse
import sys
from collections.abc import Sequence

from areal_like.process.entrypoint import run_process
from areal_like.process.identity import Identity
from areal_like.process.run import Run


def attendant(words: Sequence[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    own, command = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--attach", help="address of an engine that runs already")
    parser.add_argument("--kind", choices=("vllm", "sglang", "embedded"), help="what it is; it is asked otherwise")
    said, others = parser.parse_known_args(own)
    if bool(said.attach) == bool(command):
        parser.error("give --attach, or -- and the command of an engine")

    def main(run: Run, me: Identity) -> None:
        from areal_like.serving.external.main import ServerProcess

        ServerProcess(run, me, said.attach, said.kind, command).live()

    return run_process(main, others)


if __name__ == "__main__":
    sys.exit(attendant(sys.argv[1:]))
