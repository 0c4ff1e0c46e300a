"""Whole runs by the real command, asynchronous and synchronous, compared with a plain loop in one process.

    python tests/bench/bench_ring.py [--steps 160] [--output build/bench/ring.json] [override ...]

Overrides apply to all three. It reports wall and CPU time per step and up to a held-out score of 0.9, the start up to
the first step, the parts of a step, and the asynchronous speed-up with its upper bound. They run one at a time on the
same cores. It never fails because of a time.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import ring_times  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.bench.watched import Watched, watch  # noqa: E402

CONFIG = "grpo.yaml"
ASYNC, SYNC, PLAIN = "ring, asynchronous", "ring, synchronous", "plain loop"
LIMIT_S = 1800.0
PILOT_STEPS = 4


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def run_ring(name: str, folder: Path, overrides: list[str]) -> tuple[Path, Watched]:
    """One run by the command line; returns its directory and measurements."""
    here = folder / ("asynchronous" if name == ASYNC else "synchronous")
    here.mkdir()
    mode = ["async_training=true"] if name == ASYNC else ["max_head_offpolicyness=0"]
    words = ["-m", "launcher", "--config", CONFIG, "cluster.fileroot=runs", "trial_name=bench", *mode, *overrides]
    watched = watch([sys.executable, *words], here, environment(), LIMIT_S)
    directories = list(here.glob("runs/*/bench"))
    if watched.exit_code or not directories:
        raise SystemExit(f"{name}: exit code {watched.exit_code}\n{watched.output}")
    return directories[0], watched


def run_plain(run_dir: Path, folder: Path, steps: int, threads: int) -> tuple[dict[str, Any], Watched]:
    output = folder / f"plain-{threads}-{steps}.json"
    words = [str(ROOT / "tests/bench/plain_loop.py"), str(run_dir), "--steps", str(steps)]
    words += ["--threads", str(threads), "--output", str(output)]
    watched = watch([sys.executable, *words], folder, environment(OMP_NUM_THREADS=str(threads)), LIMIT_S)
    if watched.exit_code:
        raise SystemExit(f"{PLAIN}: exit code {watched.exit_code}\n{watched.output}")
    return json.loads(output.read_text(encoding="utf-8")), watched


def best_threads(run_dir: Path, folder: Path) -> int:
    """One thread may be faster than many for so small a model: a few steps with each decide."""
    taken = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        result, _ = run_plain(run_dir, folder, PILOT_STEPS, threads)
        taken[threads] = result["steps"][-1][1] - result["steps"][0][1]
    return min(taken, key=lambda threads: taken[threads])


def measure(steps: int | None, overrides: list[str], folder: Path) -> dict[str, Any]:
    words = [*overrides, *([f"total_train_steps={steps}"] if steps is not None else [])]
    rows: dict[str, dict[str, Any]] = {}
    for name in (ASYNC, SYNC):
        print(f"{name} ...", flush=True)
        run_dir, watched = run_ring(name, folder, words)
        rows[name] = ring_times.ring(run_dir, watched)
    print(f"{PLAIN} ...", flush=True)
    threads = best_threads(run_dir, folder)
    result, watched = run_plain(run_dir, folder, rows[SYNC]["steps"], threads)
    rows[PLAIN] = ring_times.plain(result, watched.wall_s, watched.cpu_s, watched.began)
    return rows


def report(rows: dict[str, dict[str, Any]], load_before: tuple[float, ...]) -> dict[str, Any]:
    plain, asynchronous, synchronous = rows[PLAIN], rows[ASYNC], rows[SYNC]

    def times(name: str, row: dict[str, Any], base: dict[str, Any]) -> float | None:
        return row[name] / base[name] if row[name] and base[name] else None

    ratios = {
        name: {
            "wall_times_plain": times("wall_s_per_step", row, plain),
            "cpu_times_plain": times("cpu_s_per_step", row, plain),
            "learnt_wall_times_plain": times("wall_s", row["learnt"], plain["learnt"]),
            "learnt_cpu_times_plain": times("cpu_s", row["learnt"], plain["learnt"]),
        }
        for name, row in rows.items()
    }
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changed_since": bool(_git("status", "--porcelain")),
        "python": platform.python_version(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "config": CONFIG,
        "runs": rows,
        "ratios": ratios,
        "asynchronous_speedup": times("wall_s_per_step", synchronous, asynchronous),
        "asynchronous_ceiling": ring_times.ceiling(asynchronous["where_a_step_goes"]),
        "same_rewards_as_plain": _same(synchronous["rewards"], plain["rewards"]),
    }


def _same(ring: list[float], plain: list[float]) -> int:
    """The number of first steps in which synchronous ring and plain loop have the same rewards."""
    pairs = zip(ring, plain, strict=False)
    return next((step for step, (mine, other) in enumerate(pairs) if abs(mine - other) > 1e-6), len(ring))


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def table(results: dict[str, Any]) -> str:
    runs, ratios = results["runs"], results["ratios"]
    head = (
        "first step",
        "wall/step",
        "x plain",
        "CPU/step",
        "x plain",
        "to 0.9",
        "x plain",
        "CPU",
        "x plain",
        "held out",
    )
    lines = ["seconds                " + "".join(f"{word:>11}" for word in head)]
    for name, row in runs.items():
        ratio, learnt = ratios[name], row["learnt"]
        numbers = [row["first_step_s"], row["wall_s_per_step"], ratio["wall_times_plain"], row["cpu_s_per_step"]]
        numbers += [ratio["cpu_times_plain"], learnt["wall_s"], ratio["learnt_wall_times_plain"], learnt["cpu_s"]]
        numbers += [ratio["learnt_cpu_times_plain"], row["scores"][-1][1] if row["scores"] else None]
        lines.append(f"{name:<23}" + "".join(f"{_number(number):>11}" for number in numbers))
    lines += ["", f"from the command to the first step ({ASYNC})"]
    before = 0.0
    for event, at in runs[ASYNC]["start"].items():
        lines.append(f"  {at:6.2f} s  +{at - before:5.2f}  {event}")
        before = at
    for name, row in runs.items():
        parts = {part: value for part, value in row["where_a_step_goes"].items() if part.endswith("_s")}
        lines += ["", f"where a step goes, in milliseconds ({name})"]
        lines.append("  " + ", ".join(f"{part.removesuffix('_s')} {1000 * value:.0f}" for part, value in parts.items()))
        by_process = row.get("cpu_s_per_step_by_process")
        if by_process:
            times = ", ".join(f"{role} {1000 * used:.0f}" for role, used in by_process.items())
            lines.append(f"  CPU by process: {times}")
    lines += [
        "",
        f"asynchronous: {_number(results['asynchronous_speedup'])} times as fast as synchronous; its ceiling, "
        f"(generation + training) / the longer of the two: {_number(results['asynchronous_ceiling'])}",
        f"the plain loop (threads: {runs[PLAIN]['threads']}) got the same rewards as the synchronous ring in the first "
        f"{results['same_rewards_as_plain']} of {runs[PLAIN]['steps']} steps",
        "load {:.1f} to {:.1f} on {} cores".format(
            results["load_average"]["before"][0], results["load_average"]["after"][0], results["cpu_count"]
        ),
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as seed=3")
    parser.add_argument("--steps", type=int, help="number of steps; default: that of the configuration")
    add_output(parser, "ring")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 2:
        parser.error("--steps: at least 2")
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="bench-ring-") as name:
        results = report(measure(arguments.steps, arguments.overrides, Path(name)), load_before)
    print(table(results))
    write_report(results, arguments.output)


if __name__ == "__main__":
    main()
