"""`from areal_like import run` does what the command does."""

import pytest

from areal_like import run
from areal_like.config.problems import ConfigError
from tests.ring.start import SHORT, environment

pytestmark = pytest.mark.xdist_group("ring-2")


@pytest.fixture(autouse=True)
def standing_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)


def test_a_run_from_python(tmp_path):
    words = [*SHORT, "cluster.fileroot=runs", "total_train_steps=2", "evaluator.freq_steps=2"]
    result = run("grpo.yaml", words)
    assert result.directory == tmp_path / "runs" / "grpo-addition" / "r0001"
    assert result.score is not None and 0 <= result.score <= 1
    assert [line["step"] for line in result.metrics() if "train/loss" in line] == [1, 2]


def test_a_bad_key_is_an_error_with_the_message_of_the_command():
    with pytest.raises(ConfigError, match=r"actor\.optmizer\.lr"):
        run("grpo.yaml", ["actor.optmizer.lr=1"])
