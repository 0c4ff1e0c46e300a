"""Which keys can be ignored without a test failing: `python -m tests.mutation.mutate_keys`, or `make mutate-keys`.

The product ignores one key at a time, in a copy of the repository, and the tests that are marked as showing it run
there until one fails. A key whose tests all pass is listed, and makes the exit code 1. The tests must be green to
begin with.
The result is kept as JSON: a later call with the same commit goes on where this one ended.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.schema import Schema
from docs.make.key_markers import shown
from tests.mutation.ignored_key import ROOT, copy_repository, ignore_key

RESULT = ROOT / "build" / "mutation" / "keys.json"
CAUGHT, GREEN, NOT_CHECKED, NO_DEFAULT = "caught", "green", "not checked", "no default"


def main() -> int:
    """Runs the tests of each key that is to be ignored, and lists those that no test misses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="N keys, drawn by --seed, in place of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", nargs="+", metavar="KEY", help="these keys")
    parser.add_argument("--result", type=Path, default=RESULT, help="file of the result (%(default)s)")
    parser.add_argument("--timeout", type=int, default=180, help="seconds for one test (%(default)s)")
    arguments = parser.parse_args()
    keys = arguments.keys or sorted(shown().effect)
    if arguments.sample is not None:
        keys = sorted(random.Random(arguments.seed).sample(keys, min(arguments.sample, len(keys))))
    if unknown := [key for key in keys if key not in shown().effect]:
        parser.error(f"no test is marked as showing {', '.join(unknown)}")
    done = _earlier(arguments.result)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "repository"
        copy_repository(copy)
        for number, key in enumerate(keys, start=1):
            if key not in done["keys"]:
                done["keys"][key] = _ignored(copy, key, arguments.timeout)
                done["date"] = datetime.now(UTC).isoformat(timespec="seconds")
                arguments.result.parent.mkdir(parents=True, exist_ok=True)
                arguments.result.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
            entry = done["keys"][key]
            print(f"{number}/{len(keys)} {key}: {entry['result']} ({entry['seconds']:.0f} s)", flush=True)
    return _report({key: done["keys"][key] for key in keys}, arguments.result)


def _report(entries: dict[str, Any], result: Path) -> int:
    green = {key: each["green"] for key, each in entries.items() if each["result"] == GREEN}
    for key, tests in green.items():
        print(f"ignored, and every test of it is green: {key}: {', '.join(tests)}")
    for outcome in (NOT_CHECKED, NO_DEFAULT):
        if keys := [key for key, each in entries.items() if each["result"] == outcome]:
            print(f"{outcome}: {', '.join(keys)}")
    caught = sum(each["result"] == CAUGHT for each in entries.values())
    print(f"{caught} of {len(entries)} ignored keys are caught; {result} has them all")
    return 1 if green else 0


def _earlier(result: Path) -> dict[str, Any]:
    """The result of an earlier call with the same files."""
    with contextlib.suppress(OSError, ValueError):
        earlier: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if earlier["commit"] == _commit():
            return earlier
    return {"commit": _commit(), "date": "", "keys": {}}


def _commit() -> str:
    """The commit, and the tree of files that are changed but not committed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changes = git("stash", "create")
    return git("rev-parse", "HEAD") + (f" and tree {git('rev-parse', changes + '^{tree}')}" if changes else "")


def _ignored(copy: Path, key: str, timeout_s: int) -> dict[str, Any]:
    """What became of the tests of a key that is ignored."""
    began = time.monotonic()
    declared = [schema.keys[key] for cls in EXPERIMENTS.values() if key in (schema := Schema.of(cls)).keys]
    if declared and all(each.constraints.required for each in declared):
        return {"result": NO_DEFAULT, "green": [], "failed": [], "seconds": 0.0}
    ignore_key(copy, key)
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    tests = list(shown().effect[key])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", str(timeout_s)]
    command += ["--shows", key, f"--junitxml={report}", *sorted({test.partition("::")[0] for test in tests})]
    with _session(command, copy) as process:
        output, _ = process.communicate()
    outcomes = dict(_outcomes(report)) if report.is_file() else {}
    green = [test for test, outcome in outcomes.items() if outcome == "passed"]
    failed = [test for test, outcome in outcomes.items() if outcome == "failed"]
    if not outcomes and process.returncode:  # it ends before the first test, as when every configuration is refused
        failed = [(output.strip().splitlines() or ["pytest has no report"])[-1]]
    result = CAUGHT if failed else GREEN if green else NOT_CHECKED
    return {"result": result, "green": green, "failed": failed, "seconds": round(time.monotonic() - began, 1)}


@contextlib.contextmanager
def _session(command: list[str], copy: Path) -> Iterator["subprocess.Popen[str]"]:
    """A session of pytest in the copy; whatever it leaves behind in its process group ends with it."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "XDG_STATE_HOME": str(copy / "state"), "CI": ""}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcomes(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        wrong = case.find("failure") is not None or case.find("error") is not None
        yield name, "failed" if wrong else "skipped" if case.find("skipped") is not None else "passed"


if __name__ == "__main__":
    raise SystemExit(main())
