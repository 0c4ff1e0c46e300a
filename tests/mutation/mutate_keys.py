"""Mutation tests of keys: disables each key in turn (`python -m tests.mutation.mutate_keys`, or `make mutate-keys`).

A copy of the repository ignores one key while the tests marked as showing that key run, until one fails. Many keys
share a pytest session; a key whose tests all pass is tried again in a separate session, since tests may share state.
If its tests pass again, the key is listed and the exit code is 1. All tests must pass without mutation. A key without
a default, such as experiment_name, cannot be ignored, and one with a single value, such as actor.peft_type, not without
a change; they are listed as not mutated.

Results are written as JSON: a later call at the same commit resumes an interrupted one.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.schema import Schema
from docs.make.key_markers import shown
from tests.mutation.ignored_key import ROOT, copy_repository

RESULT = ROOT / "build" / "mutation" / "keys.json"
CAUGHT, GREEN, NOT_CHECKED, NOT_MUTATED = "caught", "green", "not checked", "not mutated"
BATCH = 20
"""Keys of one session."""


def main() -> int:
    """Runs the tests of each key while it is ignored; lists keys whose tests all pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="N random keys, drawn with --seed, instead of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", nargs="+", metavar="KEY", help="only these keys")
    parser.add_argument("--result", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--timeout", type=int, default=180, help="time limit of one test in seconds (%(default)s)")
    arguments = parser.parse_args()
    keys = arguments.keys or sorted(shown().effect)
    if arguments.sample is not None:
        keys = sorted(random.Random(arguments.seed).sample(keys, min(arguments.sample, len(keys))))
    if unknown := [key for key in keys if key not in shown().effect]:
        parser.error(f"no test is marked as showing {', '.join(unknown)}")
    result = _earlier(arguments.result)
    with TemporaryDirectory() as folder:
        runner = Runner(Path(folder), arguments.timeout)
        left = [key for key in keys if key not in result["keys"]]
        # Keys with the same tests become neighbours, so that their files are collected once.
        left.sort(key=lambda key: (shown().effect[key], key))
        for start in range(0, len(left), BATCH):
            for key, entry in runner.outcomes(left[start : start + BATCH]).items():
                result["keys"][key] = entry
                print(f"{key}: {entry['result']}", flush=True)
            result["date"] = datetime.now(UTC).isoformat(timespec="seconds")
            arguments.result.parent.mkdir(parents=True, exist_ok=True)
            arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return _report({key: result["keys"][key] for key in keys}, arguments.result)


class Runner:
    """Runs tests in a copy of the repository."""

    def __init__(self, folder: Path, timeout_s: int) -> None:
        self._copy, self._outcomes = folder / "repository", folder / "outcomes.jsonl"
        self._timeout_s = timeout_s
        copy_repository(self._copy)

    def outcomes(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Key -> its result, and its tests by outcome."""
        ignorable = [key for key in keys if _can_be_ignored(key)]
        entries = {key: _entry([]) | {"result": NOT_MUTATED} for key in keys if key not in ignorable}
        entries |= self._session(ignorable) if ignorable else {}
        for key in [key for key, entry in entries.items() if entry["result"] == GREEN]:
            entries |= self._session([key])
        return entries

    def _session(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        self._outcomes.write_text("")
        files = sorted({test.partition("::")[0] for key in keys for test in shown().effect[key]})
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.one_session"]
        command += ["--timeout", str(self._timeout_s), "-o", "timeout_func_only=true", *files]
        environment = os.environ | {
            "PYTHONPATH": str(self._copy),
            "XDG_STATE_HOME": str(self._copy / "state"),
            "MUTATED_KEYS": " ".join(keys),
            "MUTATED_OUTCOMES": str(self._outcomes),
            "CI": "",
        }
        process = subprocess.Popen(
            command,
            cwd=self._copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = [json.loads(line) for line in self._outcomes.read_text().splitlines()]
        if not lines:
            raise RuntimeError(f"pytest ran none of the tests of {', '.join(keys)}:\n{output[-2000:]}")
        return {key: _entry([line for line in lines if line["key"] == key]) for key in keys}


def _entry(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tests = {
        outcome: [line["test"] for line in lines if line["outcome"] == outcome] for outcome in ("passed", "failed")
    }
    result = CAUGHT if tests["failed"] else GREEN if tests["passed"] else NOT_CHECKED
    return {"result": result, **tests, "seconds": round(sum(line["seconds"] for line in lines), 1)}


def _can_be_ignored(key: str) -> bool:
    schemas = [Schema.of(cls) for cls in EXPERIMENTS.values()]
    known = [schema.keys[key].constraints for schema in schemas if key in schema.keys]
    return any(not each.required and len(each.choices or ()) != 1 for each in known) or any(
        schema.sections[key].default_null for schema in schemas if key in schema.sections
    )


def _report(entries: dict[str, Any], result: Path) -> int:
    green = {key: entry["passed"] for key, entry in entries.items() if entry["result"] == GREEN}
    for key, tests in green.items():
        print(f"{key} can be ignored: {', '.join(tests)} still passes")
    for outcome, why in {NOT_CHECKED: "no test of it ran", NOT_MUTATED: "no default, or one value"}.items():
        if keys := [key for key, entry in entries.items() if entry["result"] == outcome]:
            print(f"{outcome} ({why}): {', '.join(keys)}")
    results = [entry["result"] for entry in entries.values()]
    mutated = len(results) - results.count(NOT_MUTATED)
    print(f"{results.count(CAUGHT)} of {mutated} ignored keys are caught; details in {result}")
    return 1 if green else 0


def _earlier(result: Path) -> dict[str, Any]:
    """The result of an earlier call with the same files."""
    with contextlib.suppress(OSError, ValueError):
        earlier: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if earlier["commit"] == _commit():
            return earlier
    return {"commit": _commit(), "date": "", "keys": {}}


def _commit() -> str:
    """The commit, and the tree of uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changes = git("stash", "create")
    return git("rev-parse", "HEAD") + (f" and tree {git('rev-parse', changes + '^{tree}')}" if changes else "")


if __name__ == "__main__":
    raise SystemExit(main())
