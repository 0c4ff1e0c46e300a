"""Healthy runs print no warning: each shipped experiment, algorithm and command of README, with few steps."""

import re
import shlex
from pathlib import Path

import pytest

from areal_like.models import missing_weights_hint
from tests.ring.start import run, warnings_in
from tests.support.commands import REPOSITORY

pytestmark = [pytest.mark.slow]

STEPS = 15
LARGE = {"smollm2_sft.yaml": 2, "smollm2_grpo.yaml": 2}
"""Steps of those that take seconds each."""
DOWNLOADED = dict.fromkeys(LARGE, "builtin:smollm2-135m")
"""Experiments with a model that no test downloads."""
README = (REPOSITORY / "README.md").read_text()
PARAGRAPH = README[README.index("**Change something.**") : README.index("**Stop and resume.**")]
README_RUNS = re.findall(r"^\$ python -m launcher (--config .*?) *#", PARAGRAPH, flags=re.M)
NEEDS_GPU = {"gsm8k.yaml"}
EXPERIMENTS = sorted({path.name for path in (REPOSITORY / "experiments").glob("*.yaml")} - NEEDS_GPU)
ALGORITHMS = sorted(path.stem for path in (REPOSITORY / "conf" / "algorithm").glob("*.yaml"))
RUNS = [
    *(f"--config {name}" for name in EXPERIMENTS),
    *(f"--config grpo.yaml algorithm={name}" for name in ALGORITHMS if name != "ppo"),
    *(line for line in README_RUNS if "--multirun" not in line),
]


def plan_warnings(text: str) -> list[str]:
    return re.findall(r"^warning: .*$", text, flags=re.M)


@pytest.mark.parametrize("line", sorted(set(RUNS)))
def test_a_healthy_run_gives_no_warning(line: str, tmp_path: Path) -> None:
    _, config, *words = shlex.split(line)
    if config in DOWNLOADED and (hint := missing_weights_hint(DOWNLOADED[config])):
        pytest.skip(hint)
    short = (f"total_train_steps={LARGE.get(config, STEPS)}", "recover.mode=disabled")
    ended = run(tmp_path, *words, *short, config=config, limit_s=900)
    assert ended.code == 0, ended.text
    assert warnings_in(ended.out + ended.err) == [] == plan_warnings(ended.err), ended.text
