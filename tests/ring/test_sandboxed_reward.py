"""A run whose rewards run a program for each answer, in both kinds of sandbox."""

import pytest

from areal_like.config.sections.reward import SANDBOXES
from tests.ring.start import SHORT, run, wait_until_gone
from tests.support.sandboxes import require_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ring-2")]

PROGRAMS = '''
from areal_like.rollout.episodes.rewards.code.reward import CodeReward


class Prints:
    """A program prints the answer, if it sees nothing of the run."""

    def __init__(self):
        self.judge = CodeReward(timeout_s=30)

    def __call__(self, prompt, completion, answer):
        program = f"import os\\ntry: open({__file__!r})\\nexcept OSError: print({completion!r} * (len(os.environ) < 9))"
        value = self.judge(prompt, f"```python\\n{program}\\n```", [{"input": "", "output": answer}])
        assert value == float(completion.strip() == answer), (value, completion)
        return value
'''


@pytest.mark.parametrize("kind", SANDBOXES)
def test_a_run_trains_on_programs_that_run_in_the_sandbox(kind, tmp_path):
    require_sandbox(kind)
    (tmp_path / "programs.py").write_text(PROGRAMS)
    few = (
        "train_dataset.batch_size=2",
        "total_train_steps=2",
        "evaluator.freq_steps=null",
        "reward.timeout_s=60",
    )
    ended = run(tmp_path, *SHORT, *few, "reward.name=programs.py:Prints", f"reward.sandbox={kind}")
    assert ended.code == 0, ended.text
    assert sum(ended.metric("rollout/reward_errors")) == 0, ended.text
    assert max(ended.metric("reward/max")) == 1
    assert not wait_until_gone(ended.directory)
