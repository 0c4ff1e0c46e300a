"""Two trainer ranks in a run share the work and learn like one."""

import pytest

from tests.ring.start import SHORT, left_behind, run, running
from tests.support.listening_sockets import listening, open_to_others

pytestmark = pytest.mark.xdist_group("ring-1")

TWO = "actor.backend=fsdp:d2"


def test_two_ranks_start_like_one_and_both_end(tmp_path):
    """In a synchronous run the first batch is the same, and so are its loss (with its entropy: the rest is 0 on
    average) and its gradient."""
    words = (*SHORT, "max_head_offpolicyness=0", "evaluator.freq_steps=9", "seed=3", "actor.entropy_coef=0.05")
    one = run(tmp_path, *words, "total_train_steps=1", trial="one")
    with running(tmp_path, *words, "total_train_steps=3", TWO, trial="two") as going:
        going.wait_for_step(1)
        sockets = listening([going.process.pid, going.launcher(), *going.pids()])
        two = going.wait()
    assert (one.code, two.code) == (0, 0), one.text + two.text
    assert len([addresses for addresses in sockets.values() if addresses]) >= 4, "server, controller, two ranks"
    assert open_to_others(sockets) == []

    assert two.metric("reward/mean")[0] == one.metric("reward/mean")[0]
    for name in ("train/loss", "train/grad_norm"):
        assert two.metric(name)[0] == pytest.approx(one.metric(name)[0], rel=1e-4, abs=1e-7), name
    assert len(two.metric("train/loss")) == 3
    logs = {path.name for path in (two.directory / "logs").glob("trainer-*.log")}
    assert logs == {"trainer-0.log", "trainer-1.log"}
    assert (two.model() / "model.safetensors").is_file()
    assert left_behind(two.directory, set()) == []


@pytest.mark.slow
def test_two_ranks_learn(tmp_path):
    ended = run(tmp_path, TWO, "total_train_steps=60", "evaluator.freq_steps=30", limit_s=900)
    assert ended.code == 0, ended.text
    scores = ended.metric("eval/score")
    assert scores[-1] > scores[0] + 0.15
