"""curriculum.yaml beside its plain twins, by the real command: the held-out score of its word problems, and how many
answers each run has generated.

    python tests/bench/curriculum_twin.py [--seeds 1 2 3] [--output docs/curriculum]

The curves of each are written to NAME.json after each run; those of other seeds are kept. docs/curriculum.md
has the figures of such runs. Exit code 1 if the curriculum has not reached a score of 0.6 before its plain twin.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.observe.reading import read_metrics  # noqa: E402
from areal_like.rollout.ledger import read_ledger  # noqa: E402
from tests.bench import learning_curves  # noqa: E402
from tests.bench.learning_curves import SEEDS, Case, keep  # noqa: E402

PLAIN = ("curriculum.yaml", "curriculum.type=none")
CASES = {
    "curriculum": Case("With the curriculum", ("curriculum.yaml",)),
    "plain": Case("Plain", PLAIN),
    "plain_large": Case("Plain, four times the batch", (*PLAIN, "train_dataset.batch_size=128")),
}
METRIC, SCORE = "eval/env/problems", 0.6
SAMPLES = 8
"""`gconfig.n_samples` of the experiment."""


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """A run as `learning_curves` keeps it, with the score of the problems as its curve."""
    place = folder / f"{name}-{seed}"
    kept = learning_curves.run(CASES[name], seed, place)
    (directory,) = place.glob("runs/*/curve")
    groups = sum(event["event"] == "finished" for event in read_ledger(directory / "rollouts" / "ledger.jsonl"))
    curve = [[line["step"], line[METRIC]] for line in read_metrics(directory) if METRIC in line]
    return {**kept, "curve": curve, "answers": groups * SAMPLES}


def first_at(curve: list[list[float]], score: float = SCORE) -> float | None:
    """The step of the first evaluation with this score."""
    return next((step for step, found in curve if found >= score), None)


def is_ahead(runs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the curriculum reaches the score in fewer steps than its plain twin, if that does at all."""
    own, plain = (first_at(runs[name]["curve"]) for name in ("curriculum", "plain"))
    return own is not None and (plain is None or own < plain)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="SEED")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "curriculum")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    behind = []
    with tempfile.TemporaryDirectory(prefix="twins-") as folder:
        for seed in arguments.seeds:
            runs = {}
            for name, case in CASES.items():
                print(f"{case.command} seed={seed} ...", flush=True)
                runs[name] = run(name, seed, Path(folder))
                keep(arguments.output / f"{name}.json", case, runs[name])
                curve, answers = runs[name]["curve"], runs[name]["answers"]
                reached = first_at(curve)
                scores = f"{curve[0][1]:.2f} -> {curve[-1][1]:.2f}"
                print(f"  {scores}, {SCORE} first at step {reached}, {answers} answers", flush=True)
            behind += [] if is_ahead(runs) else [seed]
    print(f"written to {arguments.output}")
    if behind:
        print(f"not ahead of the plain twin with the seeds {behind}", file=sys.stderr)
    return int(bool(behind))


if __name__ == "__main__":
    sys.exit(main())
