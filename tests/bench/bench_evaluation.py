"""How much evaluations on shared servers slow training, compared with their share of the generated tokens.

    python tests/bench/bench_evaluation.py [--steps 320] [--output FILE] [override ...]

One run is compared with itself, so that what else the machine does meanwhile counts on both sides: every 16 steps an
evaluation begins, and the steps that it overlaps are compared with the others of the same 16. Their extra seconds, as a
share of the seconds of all 16, are the slowdown. The band of the ratio comes from resampling the evaluations: a run
decides only if the aim is outside of it. It never fails because of a time.

Evaluations of the first run generate as training does, eight answers per prompt; the aim is that the slowdown is no
larger than the share of the tokens that they generate. Those of the second generate one answer per row: a prompt is
read for each, so that the servers compute more for an answer than in training. There the aim is the share of all tokens
that they compute, prompts included; the share of the generated ones is shown beside it.
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
GENERATED, COMPUTED = "generated", "computed"


class Shape(NamedTuple):
    """`aimed`: of which tokens the share is that the slowdown is not to exceed."""

    rows: int
    n_samples: int
    aimed: str

    @property
    def words(self) -> tuple[str, ...]:
        return f"evaluator.num_examples={self.rows}", f"evaluator.n_samples={self.n_samples}"


SHAPES = {
    "as training": Shape(PROMPTS, SAMPLES, GENERATED),
    "one answer per row": Shape(PROMPTS * SAMPLES, 1, COMPUTED),
}
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
    shares: dict[str, float]
    """Of the tokens that the servers generate, and of those that they compute: prompts, each read once, are among
    these."""


def run(folder: Path, words: Sequence[str]) -> list[Line]:
    """The joined metrics of one run."""
    command = ["--config", CONFIG, "cluster.fileroot=runs", "trial_name=bench", *USUAL, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    watched = watch([sys.executable, "-m", "launcher", *command], folder, environment, LIMIT_S)
    files = list(folder.glob(f"runs/*/bench/{JOINED}"))
    if watched.exit_code or not files:
        raise SystemExit(f"exit code {watched.exit_code}\n{watched.output}")
    return read_lines(files[0])


def cycles(lines: Sequence[Line], shape: Shape) -> list[Cycle]:
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
        answers = PROMPTS * SAMPLES
        trained = sum(steps[step]["rollout/answer_tokens_mean"] * answers for step in own)
        with_prompts = sum(steps[step]["train/tokens"] for step in own)
        prompt = (with_prompts - trained) / (answers * FREQ_STEPS)
        tokens = line["eval/answer_tokens_mean"] * line["eval/samples"]
        read = prompt * shape.rows
        shares = {
            GENERATED: tokens / (tokens + trained),
            COMPUTED: (tokens + read) / (tokens + read + trained + prompt * PROMPTS * FREQ_STEPS),
        }
        found.append(Cycle(len(beside), len(alone), extra / sum(seconds.values()), shares))
    return found


def compare(found: Sequence[Cycle], of: str) -> dict[str, Any]:
    """Means over all cycles, and the ratio of both with its band."""
    share = statistics.fmean(each.shares[of] for each in found)
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
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="bench-evaluation-") as folder:
            found = cycles(run(Path(folder), (*shape.words, *words)), shape)
        if not found:
            raise SystemExit(f"no evaluation left steps alone: --steps {arguments.steps} has too few of {FREQ_STEPS}")
        compared = {of: compare(found, of) for of in (GENERATED, COMPUTED)}
        for of in set(compared) - {shape.aimed}:
            del compared[of]["aim"], compared[of]["verdict"]
        results[name] = {"sizes": shape.words, **compared, "cycles": [each._asdict() for each in found]}
        print(f"{name}: training is slower by {compared[GENERATED]['slower_by']:.1%}, {len(found)} evaluations")
        for of, result in compared.items():
            aim = f" (aim: at most {AIM:g}): {result['verdict']}" if of == shape.aimed else ""
            print(
                f"  {result['ratio']:.2f} times their share of the tokens {of}, {result['share_of_tokens']:.1%}, from "
                f"{result['ratio_low']:.2f} to {result['ratio_high']:.2f}{aim}",
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
