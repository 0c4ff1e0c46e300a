"""Learning curves of the experiments that fit a CPU, by the real command: held-out scores, and whether each rises
enough.

    python tests/bench/experiment_curves.py [NAME ...] [--seeds 1 2 3] [--output docs/experiments]

NAME (math_format, ...) selects some. The curves of an experiment are written to NAME.json after each run; those of
other seeds are kept. `make docs` then writes the table and the charts of docs/experiments.md. Exit code 1 if a score
did not rise enough. SmolLM2 is downloaded first, if it is not there.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.models.smollm2 import prepare  # noqa: E402
from docs.make.results_page import EXPERIMENTS  # noqa: E402
from tests.bench import learning_curves  # noqa: E402
from tests.bench.learning_curves import Case  # noqa: E402

TITLES = {
    "agent": "An agent with a calculator",
    "code": "Programs",
    "countdown": "Countdown",
    "curriculum": "Curriculum",
    "gsm_symbolic": "Word problems",
    "math_format": "Results in boxes",
    "multi_env": "Two environments",
    "multi_turn": "Several tries",
    "reasoning_gym": "Puzzles",
    "smollm2_grpo": "SmolLM2",
    "tools": "A calculator",
}
CASES = {name: Case(title, (f"{name}.yaml",)) for name, title in TITLES.items()}


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    if name.startswith("smollm2"):
        prepare.prepare()
    return learning_curves.run(CASES[name], seed, folder / f"{name}-{seed}")


def main() -> int:
    return learning_curves.main(__doc__, CASES, EXPERIMENTS, run)


if __name__ == "__main__":
    sys.exit(main())
