"""Takes hours: all slow tests with many more examples, mutation tests of all keys, all learning curves, a run of 2,000
steps, 200 runs to which something happens.

    make night                     resumes an interrupted night of the same commit
    python -m tests.night --list   the jobs and their last results
    python -m tests.night JOB ...  these jobs, even if they have passed

The result of each job is written to build/night/JOB.json with its date, commit and seconds. A job that has passed at
this commit is skipped.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "night"
SELECTED = "slow or hypothesis"
WITH_CHANGES = "with changes"


def jobs() -> dict[str, list[str]]:
    """The command of each job. Each test file is a job, so that little is lost if a night is interrupted."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", SELECTED],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = dict.fromkeys(line.partition("::")[0] for line in collected.stdout.splitlines() if "::" in line)
    pytest = ["-m", "pytest", "-q", "-m", SELECTED, "--timeout", "7200"]
    return {
        **{file.removesuffix(".py").replace("/", "."): [*pytest, file] for file in files},
        "curves": ["tests/bench/algorithm_curves.py", "--output", str(RESULTS / "curves")],
        "experiments": ["tests/bench/experiment_curves.py", "--output", str(RESULTS / "experiments")],
        "curriculum": ["tests/bench/curriculum_twin.py", "--output", str(RESULTS / "curriculum")],
        "chaos": ["-m", "tests.chaos", "--n", "200", "--seed", "1", "--out", str(RESULTS / "chaos")],
        "soak": ["tests/bench/soak.py", "--output", str(RESULTS / "soak" / "soak.json")],
        "mutate-keys": ["-m", "tests.mutation.mutate_keys"],
    }


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HYPOTHESIS_PROFILE": "night"}


def commit() -> str:
    """The commit, and whether there are uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "HEAD") + (f" {WITH_CHANGES}" if git("status", "--porcelain", "-uno") else "")


def last(name: str) -> dict[str, Any]:
    file = RESULTS / f"{name}.json"
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return result


def run(name: str, command: list[str]) -> dict[str, Any]:
    """Runs a job; its output goes to build/night/JOB.log. Prints the end of it if the job fails. Code that changes
    meanwhile is none of a commit."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    log, began, code = RESULTS / f"{name}.log", time.monotonic(), commit()
    with log.open("wb") as output:
        ended = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    result = {
        "job": name,
        "command": ["python", *command],
        "commit": code if commit() == code else f"{code} {WITH_CHANGES}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "exit": ended.returncode,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if ended.returncode:
        print("\n".join(log.read_text(errors="replace").splitlines()[-30:]))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--list", action="store_true", help="the jobs and their last results")
    arguments = parser.parse_args()
    all_jobs, now = jobs(), commit()
    if unknown := [name for name in arguments.jobs if name not in all_jobs]:
        parser.error(f"no such job: {', '.join(unknown)} (--list names them)")
    if arguments.list:
        for name in all_jobs:
            result = last(name)
            print(
                f"{name}: "
                + (f"exit {result['exit']}, {result['date']}, {result['commit'][:12]}" if result else "never run")
            )
        return 0
    failed = []
    for number, (name, command) in enumerate(all_jobs.items(), start=1):
        result = last(name)
        passed_already = result.get("exit") == 0 and result["commit"] == now and not now.endswith(WITH_CHANGES)
        if (arguments.jobs and name not in arguments.jobs) or (passed_already and not arguments.jobs):
            continue
        print(f"{number}/{len(all_jobs)} {name} ...", flush=True)
        result = run(name, command)
        print(f"  exit {result['exit']} after {result['seconds']} s", flush=True)
        failed += [name] if result["exit"] else []
    print(f"failed: {', '.join(failed)}" if failed else f"all passed; results in {RESULTS.relative_to(ROOT)}/")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
