"""`from areal_like import run` does the same as the command."""

import re
from pathlib import Path

import pytest

from areal_like import run
from areal_like.config.problems import ConfigError
from tests.ring.start import SHORT, environment, warnings_in
from tests.support.commands import REPOSITORY

pytestmark = pytest.mark.xdist_group("ring-2")


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_run_from_python(tmp_path, capfd):
    """Several updates a step are no reason to warn of anything."""
    text = (REPOSITORY / "README.md").read_text()
    mine = re.search(r"```yaml\n(# mine\.yaml\n.*?)```", text, flags=re.S)
    assert mine is not None
    Path("mine.yaml").write_text(mine[1])
    words = [*SHORT, "cluster.fileroot=runs", "total_train_steps=2", "evaluator.freq_steps=2"]

    result = run("mine.yaml", words)

    assert result.directory == tmp_path / "runs" / "first-try" / "r0001"
    assert result.score is not None and 0 <= result.score <= 1
    steps = [line for line in result.metrics() if "train/loss" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert steps[0]["train/updates"] > 1 and steps[0]["offpolicy/logprob_diff_max"] < 1e-4
    output = capfd.readouterr().out
    assert "step 2/2" in output and warnings_in(output) == []


def test_a_bad_key_is_an_error_with_the_message_of_the_command():
    with pytest.raises(ConfigError, match=r"actor\.optmizer\.lr"):
        run("grpo.yaml", ["actor.optmizer.lr=1"])
