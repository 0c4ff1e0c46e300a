"""How every process of a run begins and ends: its log, its stacks on request, and the note it leaves when it fails."""

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

from areal_like.config.problems import ConfigError
from areal_like.process import atomic_file
from areal_like.process.errors import Failure
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED
from areal_like.process.identity import Identity, identity
from areal_like.process.run import Run, open_run

MAX_OPEN_FILES = 1 << 16

log = logging.getLogger(__name__)


def run_process(main: Callable[[Run, Identity], int | None], words: Sequence[str] | None = None) -> int:
    """Runs `main` as a process of a run; returns its exit code. `words`: its arguments, where not all are for here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    parser.add_argument(
        "--index", type=int, help="for who reads the list of processes: a process knows itself by its environment"
    )
    said = parser.parse_args(words)
    me = identity()
    try:
        run = open_run(said.run_dir)
        set_up_logging(run.config.log.level, me)
        raise_open_files_limit()
        _stacks_on_request(run, me)
        code = main(run, me)
    except ConfigError as error:
        return leave_failure_note(Path(said.run_dir), me, "config", error.text(), BAD_CONFIGURATION)
    except Failure as failure:
        return leave_failure_note(Path(said.run_dir), me, failure.kind, str(failure), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        log.exception("%s ends by an error that nobody expected", me.name)
        return leave_failure_note(
            Path(said.run_dir), me, "failed", f"{type(error).__name__}: {error}", FAILED, said_already=True
        )
    return DONE if code is None else code


def leave_failure_note(
    directory: Path, me: Identity, kind: str, message: str, code: int, said_already: bool = False
) -> int:
    """Leaves a note for the launcher, which tells the user."""
    if not said_already:
        print(message, file=sys.stderr, flush=True)
    path = failure_note_path(directory, me)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write_atomic(path, json.dumps({"time": time.time(), "message": message, "kind": kind}))
    return code


def failure_note_path(directory: Path, me: Identity) -> Path:
    return directory / "logs" / f"{me.start_name}.failure.json"


def set_up_logging(level: str, me: Identity) -> None:
    """To stderr, which the launcher writes into the log of this process."""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s {me.name} %(levelname)s %(message)s", stream=sys.stderr, force=True
    )


def raise_open_files_limit() -> None:
    """Every answer under way holds a connection: of the thousand files that are usual, none would soon be left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stacks_on_request(run: Run, me: Identity) -> None:
    run.logs.mkdir(parents=True, exist_ok=True)
    file = (run.logs / f"{me.file_name}.stacks").open("a")
    os.set_inheritable(file.fileno(), False)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
