"""A server process:

`python -m areal_like.serving --run-dir DIR --index I`; for an engine that is another program, with
`-- ENGINE COMMAND...`, or, if it runs already, with `--attach HOST:PORT [--kind NAME]`.
"""

import argparse
import sys
from collections.abc import Sequence

from areal_like.process.entrypoint import end_process, run_process
from areal_like.process.identity import Identity
from areal_like.process.run import Run


def run_server(arguments: Sequence[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--attach", help="address of a running engine")
    parser.add_argument("--kind", help="its kind; detected if not given")
    options, others = parser.parse_known_args(own)
    if options.attach and command:
        parser.error("give either --attach, or -- and the command of an engine")

    def main(run: Run, me: Identity) -> None:
        from areal_like.serving.main import ServerProcess

        ServerProcess(run, me, options.attach, options.kind, command).run()

    return run_process(main, others)


if __name__ == "__main__":
    end_process(run_server(sys.argv[1:]))
