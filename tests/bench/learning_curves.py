"""Learning curves by the real command: held-out scores of runs, kept in a file for each, and whether each rises enough.
Used by algorithm_curves.py and experiment_curves.py."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from docs.make.results_page import Curve, read_results, rise, table
from tests.bench.watched import watch
from tests.ring.start import warnings_in

ROOT = Path(__file__).resolve().parents[2]
LEAST_RISE = 0.15
LIMIT_S = 1800.0
LONG_LIMIT_S = {"code.yaml": 5400.0}
"""Of an experiment whose rewards start programs, which take much longer on a busy machine."""
SEEDS = (1, 2, 3)
CODE = ("areal_like", "launcher", "conf", "experiments")
"""Folders that decide about a curve."""


class Case(NamedTuple):
    """`words` follow `python -m launcher --config`."""

    title: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(("python -m launcher --config", *self.words))

    @property
    def limit_s(self) -> float:
        return LONG_LIMIT_S.get(self.words[0], LIMIT_S)


def run(case: Case, seed: int, folder: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run in a new folder, with the curve of its summary."""
    folder.mkdir()
    words = (*case.words, f"seed={seed}", "cluster.fileroot=runs", "trial_name=curve", *overrides)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    watched = watch([sys.executable, "-m", "launcher", "--config", *words], folder, environment, case.limit_s)
    summaries = list(folder.glob("runs/*/curve/summary.json"))
    if watched.exit_code or not summaries:
        raise SystemExit(f"{case.command}: exit code {watched.exit_code}\n{watched.output}")
    return {
        "seed": seed,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": code_commit(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": round(watched.wall_s),
        "warnings": warnings_in(watched.output),
        "curve": json.loads(summaries[0].read_text(encoding="utf-8"))["curve"],
    }


def code_commit() -> str:
    """The last commit that changed the code."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", *CODE]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("log", "-1", "--format=%h") + (" with changes" if git("status", "--porcelain") else "")


def keep(file: Path, case: Case, new: dict[str, Any]) -> None:
    """Adds a run to the file of its algorithm, in place of one with the same seed; one line for each run. Those of
    another command are dropped."""
    old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    runs = {each["seed"]: each for each in old.get("runs", ()) if old["command"] == case.command} | {new["seed"]: new}
    lines = ",\n".join(f"  {json.dumps(runs[seed])}" for seed in sorted(runs))
    head = f' "title": {json.dumps(case.title)},\n "command": {json.dumps(case.command)},'
    file.write_text(f'{{\n{head}\n "runs": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def rises(curve: Curve) -> bool:
    return rise(curve) >= LEAST_RISE


def main(
    description: str | None,
    cases: Mapping[str, Case],
    output: Path,
    measure: Callable[[str, int, Path], dict[str, Any]],
    seeds: Sequence[int] = SEEDS,
) -> int:
    """The command line of both programs; `measure` runs a case, by its name and seed, below a folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(cases)}; default: all")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=seeds, metavar="SEED", help=f"default: 1 to {len(seeds)}"
    )
    shown = output.relative_to(ROOT)
    parser.add_argument("--output", type=Path, default=output, help=f"folder of the curves; default: {shown}")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in cases]:
        parser.error(f"{', '.join(unknown)}: unknown; the names are {', '.join(cases)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    few = []
    with tempfile.TemporaryDirectory(prefix="curves-") as folder:
        for seed in arguments.seeds:
            for name in arguments.names or cases:
                command = f"{cases[name].command} seed={seed}"
                print(f"{command} ...", flush=True)
                new = measure(name, seed, Path(folder))
                keep(arguments.output / f"{name}.json", cases[name], new)
                first, last = new["curve"][0][1], new["curve"][-1][1]
                print(f"  held out {first:.2f} -> {last:.2f} in {new['seconds']} s", flush=True)
                few += [] if rises(new["curve"]) else [command]
    print(table(read_results(arguments.output)))
    print(f"written to {arguments.output}")
    if few:
        print(f"did not rise by {LEAST_RISE}: {', '.join(few)}", file=sys.stderr)
    return int(bool(few))
