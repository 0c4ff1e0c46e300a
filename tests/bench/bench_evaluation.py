"""How much evaluations on shared servers slow training, compared with their share of the generated tokens.

    python tests/bench/bench_evaluation.py [--steps 48] [--rounds 3] [--output FILE] [override ...]

Pairs of the same run, with evaluations and without, one after the other; the time per step is that from the end of the
first step to the end of the last. The aim: training is slower by no more than the share of its tokens that evaluations
generate. It never fails because of a time.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.observe.reading import DUE, JOINED, Line, is_evaluation, read_lines  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.bench.ring_times import per_step  # noqa: E402
from tests.bench.watched import watch  # noqa: E402

CONFIG, LIMIT_S = "grpo.yaml", 1800.0
NEVER = 1_000_000
FREQ_STEPS, ROWS = 8, 500
USUAL = ("evaluator.eval_base_model=false", f"evaluator.num_examples={ROWS}", "recover.mode=disabled")


def run(folder: Path, evaluates: bool, words: Sequence[str]) -> list[Line]:
    """The joined metrics of one run."""
    folder.mkdir()
    interval = f"evaluator.freq_steps={FREQ_STEPS if evaluates else NEVER}"
    command = ["--config", CONFIG, "cluster.fileroot=runs", "trial_name=bench", *USUAL, interval, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    watched = watch([sys.executable, "-m", "launcher", *command], folder, environment, LIMIT_S)
    files = list(folder.glob(f"runs/*/bench/{JOINED}"))
    if watched.exit_code or not files:
        raise SystemExit(f"exit code {watched.exit_code}\n{watched.output}")
    return read_lines(files[0])


def measure(lines: Sequence[Line], answers_per_step: int) -> dict[str, float]:
    """Seconds per step, and tokens that were generated up to the last step: the evaluation after it delays no step."""
    steps = sorted((line for line in lines if "perf/step_s" in line), key=lambda line: line["step"])
    evaluated = [line for line in lines if is_evaluation(line) and line[DUE] < steps[-1]["step"]]
    seconds = per_step([(line["time"], 0.0) for line in steps])["wall_s_per_step"]
    assert seconds is not None
    return {
        "s_per_step": seconds,
        "trained_tokens": sum(line["rollout/answer_tokens_mean"] * answers_per_step for line in steps),
        "evaluated_tokens": sum(line["eval/answer_tokens_mean"] * line["eval/samples"] for line in evaluated),
        "evaluations": len(evaluated),
    }


def compare(pairs: Sequence[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    """`pairs`: with evaluations, without."""
    shares = [with_["evaluated_tokens"] / (with_["evaluated_tokens"] + with_["trained_tokens"]) for with_, _ in pairs]
    slower = [1 - without["s_per_step"] / with_["s_per_step"] for with_, without in pairs]
    share, loss = statistics.median(shares), statistics.median(slower)
    return {"share_of_tokens": share, "slower_by": loss, "slower_by_each": slower, "ratio": loss / share, "aim": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as seed=3")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    add_output(parser, "evaluation")
    arguments = parser.parse_args()
    words = [f"total_train_steps={arguments.steps}", "train_dataset.batch_size=64", "n_samples=8", *arguments.overrides]
    load_before = os.getloadavg()
    pairs = []
    with tempfile.TemporaryDirectory(prefix="bench-evaluation-") as folder:
        for number in range(arguments.rounds):
            first = [number % 2 == 0, number % 2 == 1]  # by turns, so that neither is always the first
            found = {each: measure(run(Path(folder, f"{number}-{each}"), each, words), 64 * 8) for each in first}
            pairs.append((found[True], found[False]))
            with_s, without_s = (each["s_per_step"] for each in pairs[-1])
            print(f"{with_s:.3f} s a step with evaluations, {without_s:.3f} without", flush=True)
    result = compare(pairs)
    print(
        f"training is slower by {result['slower_by']:.1%}; evaluations generate {result['share_of_tokens']:.1%} of the "
        f"tokens: {result['ratio']:.2f} times their share (aim: at most 1)"
    )
    report = {
        "what": "slowdown of training by evaluations on shared servers, compared with their share of the tokens",
        "config": [CONFIG, *USUAL, *words],
        "freq_steps": FREQ_STEPS,
        **result,
        "runs": [{"with": with_, "without": without} for with_, without in pairs],
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
