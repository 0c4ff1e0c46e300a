"""`from areal_like import run`, and sweeps of whole runs."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from areal_like import RunFailed, api, run
from areal_like.config.problems import ConfigError
from areal_like.process.stop_signals import STOP_SIGNALS, handled
from tests.support.commands import REPOSITORY
from tests.support.fake_runs import environment_of, leftover_processes, start_fake_run

WORDS = ["tracker=none", "recover.mode=auto"]


@pytest.fixture
def fake_processes(tmp_path, monkeypatch):
    """The API starts a command whose processes are fakes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "COMMAND", (sys.executable, "-m", "tests.support.fake_runs"))

    def configure(**behaviour):
        for name, value in environment_of(tmp_path, **behaviour).items():
            monkeypatch.setenv(name, value)

    return configure


def test_a_run_from_python_returns_its_result(tmp_path, fake_processes, capsys):
    fake_processes(steps=3)
    result = run("grpo.yaml", WORDS)
    assert result.directory == tmp_path / "runs" / "grpo-addition" / "r0001"
    assert (result.outcome, result.score, result.summary["steps"]) == ("done", None, 3)
    assert [line["step"] for line in result.metrics()] == [1, 2, 3]
    assert "done: 3 steps" in capsys.readouterr().out


def test_a_failed_run_raises_its_message_and_names_its_directory(tmp_path, fake_processes):
    fake_processes(step_s=30, faults={"server/0 1.1": {"do": "say no such model"}})
    with pytest.raises(RunFailed, match="no such model") as caught:
        run("grpo.yaml", WORDS)
    assert caught.value.exit_code == 1
    assert caught.value.directory == tmp_path / "runs" / "grpo-addition" / "r0001"


def test_a_refused_configuration_raises_a_config_error_with_the_commands_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"actor\.optmizer\.lr .*did you mean actor\.optimizer\.lr") as caught:
        run("grpo.yaml", ["actor.optmizer.lr=1"])
    assert caught.value.text() == str(caught.value)


def test_a_plan_from_python_is_shown_and_no_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = run("grpo.yaml", ["seed=5", "--dry-run"])
    assert (result.outcome, result.score, result.summary, result.metrics()) == ("planned", None, {}, [])
    assert result.directory == tmp_path / "runs" / "grpo-addition" / "r0001" and not result.directory.exists()
    assert "command line: seed=5 " in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--multirun", "-m", "--help", "--cfg=actor", "--explain=seed", "serve", "keys"])
def test_commands_that_start_no_single_run_are_refused_by_the_api(word, monkeypatch):
    monkeypatch.setattr(api, "run_command", None)
    with pytest.raises(ConfigError, match=f"^overrides: {word} does not start a single run"):
        run("grpo.yaml", ["seed=1,2", word])


def test_importing_the_package_does_not_import_the_api():
    code = "import sys, areal_like; assert 'areal_like.api' not in sys.modules; areal_like.run; areal_like.RunResult"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


ASKED_TO_STOP = """
import os, signal, sys, time

number, does, got = int(sys.argv[1]), sys.argv[2], []
if does != "starts":
    signal.signal(number, lambda *_: got.append(number))
os.kill(os.getppid(), number)
ends = time.monotonic() + 10
while not got and time.monotonic() < ends:
    time.sleep(0.01)
sys.exit(75 if does == "stops" and got else 0)
"""


@pytest.mark.parametrize(("does", "code"), [("stops", 75), ("starts", 75), ("is done", 0)])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_stop_goes_to_the_command_that_runs(number, does, code, monkeypatch):
    """Also to one that is about to start, or to end: who runs it learns of the signal all the same."""
    monkeypatch.setattr(api, "COMMAND", (sys.executable, "-c", ASKED_TO_STOP, str(int(number)), does))
    kept: list[int] = []
    with handled(STOP_SIGNALS, lambda number, _frame: kept.append(number)):
        ended = api.run_command([])
    assert (ended.exit_code, ended.stop_code, kept) == (code, 75, [])


def test_under_nohup_a_closed_terminal_is_no_request_to_stop(monkeypatch):
    ignores = "import os, signal; os.kill(os.getppid(), signal.SIGHUP); print(signal.getsignal(signal.SIGHUP))"
    monkeypatch.setattr(api, "COMMAND", (sys.executable, "-c", ignores))
    with handled(STOP_SIGNALS, signal.SIG_IGN):
        ended = api.run_command([])
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert (ended.exit_code, ended.stop_code) == (0, 0)


def test_a_sweep_is_a_table_of_runs_with_their_objectives(tmp_path):
    done = start_fake_run(tmp_path, "--multirun", "seed=1,2", "objective=reward/mean", steps=2).wait()
    assert done.code == 0, done
    rows = re.findall(r"^(\d) +(r0001-\d) +(\d) +(1) .*done in", done.out, flags=re.M)
    assert rows == [("0", "r0001-0", "1", "1"), ("1", "r0001-1", "2", "1")], done.out
    for trial in ("r0001-0", "r0001-1"):
        assert (tmp_path / "runs" / "grpo-addition" / trial / "summary.json").exists()
    [record, _] = sorted((tmp_path / "multirun").glob("*/*/*/point.json"))
    assert json.loads(record.read_text())["objective"] == 1.0
    assert (record.parent / "run" / "summary.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_a_stop_ends_the_run_and_the_sweep_and_leaves_nothing(number, code, tmp_path):
    sweep = start_fake_run(tmp_path, "--multirun", "seed=1,2", steps=1000)
    sweep.until_output("rollout/0 ready")
    sweep.until("metrics/trainer-0.jsonl")
    os.killpg(sweep.process.pid, number)
    ended = sweep.wait()
    assert ended.code == code, ended
    assert "not started: point 1" in ended.out
    assert list((ended.directory / "checkpoints").glob("step_*/.complete"))
    assert leftover_processes(tmp_path) == {}


def test_a_sweep_that_is_killed_leaves_no_run_behind(tmp_path):
    sweep = start_fake_run(tmp_path, "--multirun", "seed=1,2", steps=1000)
    sweep.until_output("rollout/0 ready")
    sweep.process.kill()
    sweep.process.communicate()
    assert leftover_processes(tmp_path, 10.0) == {}
