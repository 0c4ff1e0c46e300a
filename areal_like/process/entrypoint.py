"""Entry point of every process of a run: arguments, logging, stack dumps on SIGUSR2, the failure note, the exit
code."""

import argparse
import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from areal_like.config.problems import ConfigError
from areal_like.process import atomic_file, pulse
from areal_like.process.errors import Failure
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED
from areal_like.process.identity import Identity, identity, take_token
from areal_like.process.run import Run, open_run
from areal_like.process.scrubbed_output import scrub_output, scrubbed

MAX_OPEN_FILES = 1 << 16

log = logging.getLogger(__name__)


def run_process(main: Callable[[Run, Identity], int | None], words: Sequence[str] | None = None) -> int:
    """Runs `main` as a process of a run; returns its exit code. `words`: the arguments, if not those of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    parser.add_argument(
        "--index", type=int, help="shown in lists of processes only: a process reads its index from its environment"
    )
    arguments = parser.parse_args(words)
    take_token()
    scrub_output()
    me = identity()
    pulse.open_pulse()
    try:
        run = open_run(arguments.run_dir)
        set_up_logging(run.config.log.level, me)
        raise_open_files_limit()
        write_stacks_on_request(stacks_path(run, me))
        with pulse.phase(pulse.LOADING):
            code = main(run, me)
    except ConfigError as error:
        return leave_failure_note(Path(arguments.run_dir), me, "config", error.text(), BAD_CONFIGURATION)
    except Failure as failure:
        return leave_failure_note(Path(arguments.run_dir), me, failure.kind, str(failure), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        log.exception("%s: unexpected error", me.name)
        return leave_failure_note(
            Path(arguments.run_dir), me, "failed", f"{type(error).__name__}: {error}", FAILED, is_printed=True
        )
    return DONE if code is None else code


def end_process(code: int) -> NoReturn:
    """Everything is written. The interpreter's shutdown would join threads, those of user code too, which may never
    end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_failure_note(
    directory: Path, me: Identity, kind: str, message: str, code: int, is_printed: bool = False
) -> int:
    """Writes the failure note, which the launcher shows to the user."""
    if not is_printed:
        print(message, file=sys.stderr, flush=True)
    path = failure_note_path(directory, me)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write_atomic(path, json.dumps({"time": time.time(), "message": scrubbed(message), "kind": kind}))
    return code


def failure_note_path(directory: Path, me: Identity) -> Path:
    return directory / "logs" / f"{me.start_name}.failure.json"


def stacks_path(run: Run, me: Identity) -> Path:
    """Where a process writes its stacks on SIGUSR2."""
    return run.logs / f"{me.file_name}.stacks"


def set_up_logging(level: str, me: Identity) -> None:
    """Logs to stderr, which the launcher redirects into the log of this process."""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s {me.name} %(levelname)s %(message)s", stream=sys.stderr, force=True
    )


def raise_open_files_limit() -> None:
    """Every answer in flight holds a connection: the usual limit of 1024 open files would soon be reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def write_stacks_on_request(path: Path) -> None:
    """From now on this process appends the stacks of all its threads to the file on SIGUSR2, even while it holds the
    interpreter's lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    os.set_inheritable(file.fileno(), False)
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
