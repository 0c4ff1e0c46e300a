"""Runs one part of the checks in this process: `python -m tests.gpu.part NAME FILE [--small] [--set KEY=VALUE]`."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tests.gpu.parts import Part, by_name
from tests.gpu.report import CANNOT, DONE, FAILED, CannotRun, Report


def run_part(part: Part, file: Path, small: bool, words: Sequence[str] = ()) -> Report:
    """Whatever the part raises is the reason in its report."""
    report = Report(part.name, file, small, words)
    try:
        module, name = part.where.split(":")
        getattr(import_module(f"tests.gpu.{module}"), name)(report)
    except CannotRun as lack:
        report.end(CANNOT, str(lack))
    except Exception as fault:  # drivers, kernels and compilers raise anything
        traceback.print_exc()
        report.end(FAILED, f"{type(fault).__name__}: {fault}"[:2000])
    else:
        report.end(DONE)
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what the part has started
    import transformers

    from tests.gpu.machine import machine

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    (part,) = by_name(arguments.name)
    report = run_part(part, arguments.file, arguments.small, arguments.set)
    report.fact("machine", machine())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # everything is written; the end of an interpreter with a process group and compilers may hang


if __name__ == "__main__":
    main()
