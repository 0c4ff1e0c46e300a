"""How much evaluations on shared servers slow training, compared with their share of the generated tokens.

    python tests/bench/bench_evaluation.py [--steps 320] [--output FILE] [override ...]

One run is compared with itself, so that what else the machine does meanwhile counts on both sides: every 16 steps an
evaluation begins, and the steps that it overlaps are compared with the others of the same 16. Their extra seconds, as a
share of the seconds of all 16, are the slowdown; the aim is that it is no larger than the share of the tokens that the
evaluation generates. The band of the ratio comes from resampling the evaluations: a run decides only if the aim is
outside of it. It never fails because of a time.

Evaluations of the first run generate as training does, eight answers per prompt. Those of the second generate one
answer per row: a prompt is read for each, which the tokens that are generated do not count, so it has no aim.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.observe.evaluation_statistics import bootstrap  # noqa: E402
from areal_like.observe.reading import DUE, JOINED, Line, is_evaluation, read_lines  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.bench.watched import watch  # noqa: E402

CONFIG, LIMIT_S = "grpo.yaml", 3600.0
FREQ_STEPS, PROMPTS, SAMPLES = 16, 64, 8
AIM = 1.0
SHAPES = {
    "as training": (f"evaluator.num_examples={PROMPTS}", f"evaluator.n_samples={SAMPLES}"),
    "one answer per row": (f"evaluator.num_examples={PROMPTS * SAMPLES}", "evaluator.n_samples=1"),
}
AIMED = "as training"
USUAL = (
    *("evaluator.eval_base_model=false", f"evaluator.freq_steps={FREQ_STEPS}"),
    *("recover.mode=disabled", f"train_dataset.batch_size={PROMPTS}", f"n_samples={SAMPLES}"),
)


class Cycle(NamedTuple):
    """An evaluation, and the steps from its beginning to that of the next one."""

    steps_with: int
    steps_without: int
    slower_by: float
    """The share of the cycle's seconds that its steps beside the evaluation took longer."""
    share_of_tokens: float


def run(folder: Path, words: Sequence[str]) -> list[Line]:
    """The joined metrics of one run."""
    command = ["--config", CONFIG, "cluster.fileroot=runs", "trial_name=bench", *USUAL, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    watched = watch([sys.executable, "-m", "launcher", *command], folder, environment, LIMIT_S)
    files = list(folder.glob(f"runs/*/bench/{JOINED}"))
    if watched.exit_code or not files:
        raise SystemExit(f"exit code {watched.exit_code}\n{watched.output}")
    return read_lines(files[0])


def cycles(lines: Sequence[Line], answers_per_step: int) -> list[Cycle]:
    """Without those whose evaluation leaves no step alone, and without the last, which ends with the run."""
    steps = {int(line["step"]): line for line in lines if "perf/step_s" in line}
    evaluated = {int(line[DUE]): line for line in lines if is_evaluation(line)}
    found = []
    for due, line in evaluated.items():
        own = range(due + 1, due + FREQ_STEPS + 1)
        if due not in steps or due + FREQ_STEPS not in steps:
            continue
        seconds = {step: steps[step]["time"] - steps[step - 1]["time"] for step in own}
        beside = [step for step in own if steps[step - 1]["time"] < line["time"]]
        alone = [step for step in own if step not in beside]
        if not alone or not beside:
            continue
        usual = statistics.median([seconds[step] for step in alone])
        extra = sum(seconds[step] for step in beside) - len(beside) * usual
        trained = sum(steps[step]["rollout/answer_tokens_mean"] * answers_per_step for step in own)
        tokens = line["eval/answer_tokens_mean"] * line["eval/samples"]
        found.append(Cycle(len(beside), len(alone), extra / sum(seconds.values()), tokens / (tokens + trained)))
    return found


def compare(found: Sequence[Cycle]) -> dict[str, Any]:
    """Means over all cycles, and the ratio of both with its band."""
    share = statistics.fmean(each.share_of_tokens for each in found)
    ratios = [each.slower_by / share for each in found]
    low, high = bootstrap(ratios)
    verdict = "within the aim" if high <= AIM else "above the aim" if low > AIM else "not decided by this run"
    return {
        "share_of_tokens": share,
        "slower_by": statistics.fmean(each.slower_by for each in found),
        "ratio": statistics.fmean(ratios),
        "ratio_low": low,
        "ratio_high": high,
        "aim": AIM,
        "verdict": verdict,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as seed=3")
    parser.add_argument("--steps", type=int, default=320)
    add_output(parser, "evaluation")
    arguments = parser.parse_args()
    words = [f"total_train_steps={arguments.steps}", *arguments.overrides]
    load_before = os.getloadavg()
    results = {}
    for shape, sizes in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="bench-evaluation-") as folder:
            found = cycles(run(Path(folder), (*sizes, *words)), PROMPTS * SAMPLES)
        if not found:
            raise SystemExit(f"no evaluation left steps alone: --steps {arguments.steps} has too few of {FREQ_STEPS}")
        result = compare(found)
        verdict = f" (aim: at most {AIM:g}): {result['verdict']}"
        if shape != AIMED:
            verdict = ""
            del result["aim"], result["verdict"]
        results[shape] = {"sizes": sizes, **result, "cycles": [each._asdict() for each in found]}
        print(
            f"{shape}: training is slower by {result['slower_by']:.1%}; evaluations generate "
            f"{result['share_of_tokens']:.1%} of the tokens: {result['ratio']:.2f} times their share, from "
            f"{result['ratio_low']:.2f} to {result['ratio_high']:.2f} over {len(found)} evaluations" + verdict,
            flush=True,
        )
    report = {
        "what": "slowdown of training by evaluations on shared servers, compared with their share of the tokens",
        "config": [CONFIG, *USUAL, *words],
        **results,
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
