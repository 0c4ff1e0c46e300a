"""Learning curves of all algorithms by the real command, from the built-in model: held-out scores, and whether
each rises enough.

    python tests/bench/algorithm_curves.py [NAME ...] [--seeds 1 2 3] [--output docs/results]

Runs take about a minute each, one at a time. NAME (grpo, ppo, ...) selects some. The curves of an algorithm are written
to NAME.json after each run; those of other seeds are kept. `make docs` then writes the table of docs/results.md. Exit
code 1 if a score did not rise enough.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.make.results_page import RESULTS, Curve, read_results, rise, table  # noqa: E402
from tests.bench.watched import watch  # noqa: E402
from tests.ring.start import warnings_in  # noqa: E402

LEAST_RISE = 0.15
LIMIT_S = 1800.0
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


NOT_RUN = ("prime_rl", "tis")
"""Algorithms without a curve: `tis` only adds something to another one."""
WORDS = {"dapo": ("grpo.yaml", "algorithm=dapo", "rollout.refill=false"), "ppo": ("ppo.yaml",)}
"""Of those that need other words than the rest."""


def shipped() -> dict[str, Case]:
    """All others, by the comments of their files, which begin with the name and a colon."""
    cases = {}
    for path in sorted((ROOT / "conf" / "algorithm").glob("*.yaml")):
        if path.stem not in NOT_RUN:
            title = path.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ").partition(":")[0]
            cases[path.stem] = Case(title, WORDS.get(path.stem, ("grpo.yaml", f"algorithm={path.stem}")))
    return cases


CASES = shipped()


def run(name: str, seed: int, folder: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run, with the curve of its summary."""
    here = folder / f"{name}-{seed}"
    here.mkdir()
    words = (*CASES[name].words, f"seed={seed}", "cluster.fileroot=runs", "trial_name=curve", *overrides)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    watched = watch([sys.executable, "-m", "launcher", "--config", *words], here, environment, LIMIT_S)
    summaries = list(here.glob("runs/*/curve/summary.json"))
    if watched.exit_code or not summaries:
        raise SystemExit(f"{name}: exit code {watched.exit_code}\n{watched.output}")
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CASES)}; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="SEED", help="default: 1 2 3")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the curves; default: docs/results")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in CASES]:
        parser.error(f"{', '.join(unknown)}: unknown; the names are {', '.join(CASES)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    few = []
    with tempfile.TemporaryDirectory(prefix="algorithms-") as folder:
        for seed in arguments.seeds:
            for name in arguments.names or CASES:
                command = f"{CASES[name].command} seed={seed}"
                print(f"{command} ...", flush=True)
                new = run(name, seed, Path(folder))
                keep(arguments.output / f"{name}.json", CASES[name], new)
                first, last = new["curve"][0][1], new["curve"][-1][1]
                print(f"  held out {first:.2f} -> {last:.2f} in {new['seconds']} s", flush=True)
                few += [] if rises(new["curve"]) else [command]
    print(table(read_results(arguments.output)))
    print(f"written to {arguments.output}")
    if few:
        print(f"did not rise by {LEAST_RISE}: {', '.join(few)}", file=sys.stderr)
    return int(bool(few))


if __name__ == "__main__":
    sys.exit(main())
