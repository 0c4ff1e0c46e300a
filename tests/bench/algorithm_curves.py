"""Learning curves of all algorithms by the real command, from the built-in model: held-out scores, and whether
each rises enough.

    python tests/bench/algorithm_curves.py [NAME ...] [--output build/bench/algorithms.json] [--docs docs/results.md]

Runs take some minutes each, one at a time. NAME (grpo, ppo, ...) selects some; the output and the page keep earlier
results of the others. `--docs` writes the table into a page, between its two marks. Exit code 1 if a score did not rise
enough.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.watched import watch  # noqa: E402

LEAST_RISE = 0.15
LIMIT_S = 1800.0
BEGIN, END = "<!-- algorithm_curves.py: begin -->", "<!-- algorithm_curves.py: end -->"
POINTS = (0.25, 0.5, 0.75, 1.0)
"""Parts of the run at which the table shows the score."""


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


def run(name: str, folder: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run, and the curve of its summary."""
    case = CASES[name]
    here = folder / name
    here.mkdir()
    words = ["-m", "launcher", "--config", *case.words, "cluster.fileroot=runs", "trial_name=curve", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    watched = watch([sys.executable, *words], here, environment, LIMIT_S)
    summaries = list(here.glob("runs/*/curve/summary.json"))
    if watched.exit_code or not summaries:
        raise SystemExit(f"{name}: exit code {watched.exit_code}\n{watched.output}")
    summary = json.loads(summaries[0].read_text(encoding="utf-8"))
    load = os.getloadavg()[0]
    return {**judged(summary["curve"]), "command": case.command, "wall_s": watched.wall_s, "load_average": load}


def judged(curve: list[list[float]]) -> dict[str, Any]:
    """A curve of [step, score], and how far it has risen from the first score to the last."""
    rise = curve[-1][1] - curve[0][1]
    return {"curve": curve, "start": curve[0][1], "end": curve[-1][1], "rise": rise, "learnt": rise >= LEAST_RISE}


def at(curve: list[list[float]], share: float) -> float:
    """The last score up to this share of the steps."""
    until = share * curve[-1][0]
    return [score for step, score in curve if step <= until][-1]


def table(runs: dict[str, dict[str, Any]], old: str = "") -> str:
    """Markdown. Algorithms that were not run keep their rows of the old table."""
    old_rows = {line.split("`")[1]: line for line in old.splitlines() if line.count("`") == 2}
    shares = [f"{share:.0%}" for share in POINTS]
    lines = ["| | command | steps | start | " + " | ".join(shares) + " | rise |"]
    lines.append("| --- | --- | ---: | ---: |" + " ---: |" * (len(POINTS) + 1))
    for name in CASES:
        if name in runs:
            row = runs[name]
            scores = " | ".join(f"{at(row['curve'], share):.2f}" for share in POINTS)
            steps, rise = int(row["curve"][-1][0]), f"{row['rise']:+.2f}"
            cells = (CASES[name].title, f"`{row['command']}`", str(steps), f"{row['start']:.2f}", scores, rise)
            lines.append(f"| {' | '.join(cells)} |")
        elif CASES[name].command in old_rows:
            lines.append(old_rows[CASES[name].command])
    return "\n".join(lines)


def page(text: str, runs: dict[str, dict[str, Any]]) -> str:
    """The page with the table of these runs between its marks."""
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"--docs: the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(runs, old)}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CASES)}; default: all")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "bench" / "algorithms.json", help="file of the results"
    )
    parser.add_argument("--docs", type=Path, help="a page to write the table into")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in CASES]:
        parser.error(f"{', '.join(unknown)}: unknown; the names are {', '.join(CASES)}")
    text = arguments.docs.read_text(encoding="utf-8") if arguments.docs else ""
    if text:
        page(text, {})
    runs: dict[str, dict[str, Any]] = {}
    if arguments.names and arguments.output.is_file():
        runs = json.loads(arguments.output.read_text(encoding="utf-8"))["runs"]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="algorithms-") as folder:
        for name in arguments.names or CASES:
            print(f"{CASES[name].command} ...", flush=True)
            runs[name] = row = run(name, Path(folder))
            print(f"  held out {row['start']:.2f} -> {row['end']:.2f} in {row['wall_s']:.0f} s", flush=True)
            report = {
                "least_rise": LEAST_RISE,
                "cpu_count": len(os.sched_getaffinity(0)),
                "python": platform.python_version(),
                "torch": version("torch"),
                "runs": {name: runs[name] for name in CASES if name in runs},
            }
            arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(runs))
    if arguments.docs:
        arguments.docs.write_text(page(text, runs), encoding="utf-8")
    print(f"written to {arguments.output}")
    few = [CASES[name].title for name, row in runs.items() if not row["learnt"]]
    if few:
        print(f"did not rise by {LEAST_RISE}: {', '.join(few)}", file=sys.stderr)
    return int(bool(few))


if __name__ == "__main__":
    sys.exit(main())
