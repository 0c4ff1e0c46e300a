"""Learning curves of all algorithms by the real command, from the built-in model: held-out scores, and whether
each rises enough.

    python tests/bench/algorithm_curves.py [NAME ...] [--seeds 1 2 3 4 5] [--output docs/results]

Runs take about a minute each, one at a time. NAME (grpo, ppo, ...) selects some. The curves of an algorithm are written
to NAME.json after each run; those of other seeds are kept. `make docs` then writes the table of docs/results.md. Exit
code 1 if a score did not rise enough.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.make.results_page import RESULTS  # noqa: E402
from tests.bench import learning_curves  # noqa: E402
from tests.bench.learning_curves import Case  # noqa: E402

SEEDS = (1, 2, 3, 4, 5)
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


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    return learning_curves.run(CASES[name], seed, folder / f"{name}-{seed}")


def main() -> int:
    return learning_curves.main(__doc__, CASES, RESULTS, run, SEEDS)


if __name__ == "__main__":
    sys.exit(main())
