"""The command line of what uploads the answers of a run: `--run-dir D`. The last line of its output is where the
answers are, or why they could not be uploaded; without secrets."""

import argparse
from collections.abc import Callable
from pathlib import Path

from areal_like.config.problems import ConfigError
from areal_like.process.run import Run, open_run
from areal_like.process.scrubbed_output import scrub_output


def upload_command(description: str, work: Callable[[Run], str], *libraries: str) -> int:
    """The exit code. Errors of `libraries`, and those of a network, are reasons; others are errors of this program."""
    from areal_like.models.fetch import LIBRARIES, reason

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run-dir", type=Path, required=True)
    scrub_output()
    run = open_run(parser.parse_args().run_dir, own_class=False)
    try:
        print(work(run))
    except ConfigError as broken:
        print(broken)
        return 1
    except Exception as fault:
        library = type(fault).__module__.partition(".")[0].rstrip("0123456789")
        if not isinstance(fault, OSError | ValueError) and library not in (*LIBRARIES, *libraries):
            raise
        print(reason(fault))
        return 1
    return 0
