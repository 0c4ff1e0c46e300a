"""What each `recover.mode` does after a failure and with a run that exists, through the command line."""

import pytest

from tests.support.commands import command_runner
from tests.support.fake_runs import start_fake_run

KILLED = {"trainer/0 1.1": {"step": 3, "do": "kill"}}


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    return command_runner(tmp_path, capsys, monkeypatch)


@pytest.mark.shows("recover.mode")
def test_fault_goes_on_after_a_failure_and_never_takes_an_existing_run(tmp_path):
    words = ("trial_name=t", "recover.mode=fault")
    ended = start_fake_run(tmp_path, *words, steps=4, faults=KILLED).wait()
    assert (ended.code, ended.summary["attempts"]) == (0, 2), ended
    assert "attempt 2 resumes from step 2" in ended.out and ended.steps() == [1, 2, 3, 4]
    again = start_fake_run(tmp_path, *words, steps=6).wait()
    assert again.code == 2 and "trial_name" in again.err and "resume=runs/grpo-addition/t" in again.err, again
    (ended.directory / "finished").unlink()
    by_hand = start_fake_run(tmp_path, "resume=t", steps=6).wait()
    assert (by_hand.code, by_hand.steps()) == (0, [1, 2, 3, 4, 5, 6]), by_hand


@pytest.mark.shows("recover.mode")
def test_resume_needs_a_checkpoint_goes_on_from_it_and_recovers(tmp_path):
    words = ("trial_name=t", "recover.mode=resume")
    refused = start_fake_run(tmp_path, *words).wait()
    assert refused.code == 2 and "recover.mode" in refused.err, refused
    assert not list((tmp_path / "runs").glob("*/*")), "nothing was made"
    first = start_fake_run(tmp_path, "trial_name=t", steps=2).wait()
    assert first.code == 0, first
    (first.directory / "finished").unlink()
    faults = {"trainer/0 2.1": {"step": 5, "do": "kill"}}
    ended = start_fake_run(tmp_path, *words, steps=6, faults=faults).wait()
    assert (ended.code, ended.summary["attempts"], ended.steps()) == (0, 3, [1, 2, 3, 4, 5, 6]), ended
    assert "resuming from step 2 (attempt 2)" in ended.out and "attempt 3 resumes from step 4" in ended.out


@pytest.mark.shows("recover.mode")
def test_auto_begins_a_run_that_has_no_checkpoint(tmp_path):
    first = start_fake_run(
        tmp_path, "trial_name=t", "recover.retries=0", steps=4, faults={"trainer/0 1.1": {"step": 1, "do": "kill"}}
    ).wait()
    assert first.code == 1, first
    again = start_fake_run(tmp_path, "trial_name=t", steps=4).wait()
    assert (again.code, again.steps()) == (0, [1, 2, 3, 4]), again
    assert "starting from the beginning (attempt 2)" in again.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("trial_name=auto",), "trial_name=auto starts a new run"),
        (("trial_name=t",), "runs/grpo-addition/t does not exist yet"),
        (("trial_name=old", "--replace"), "--replace starts over"),
    ],
)
def test_a_dry_run_refuses_resume_where_the_run_would_begin(words, why, command, tmp_path):
    (tmp_path / "runs" / "grpo-addition" / "old" / "logs").mkdir(parents=True)
    start = ("--config", "grpo.yaml", "tracker=none", "recover.mode=resume", *words)
    refused = " ".join(command(*start, "--dry-run").out.split())
    assert "cannot start here (1) - recover.mode [override recover.mode=resume]: resume needs" in refused, refused
    assert why in refused and "or set recover.mode=auto to begin a new one" in refused
    assert why in command.refusal(*start)


@pytest.mark.parametrize("mode", ["disabled", "fault"])
def test_a_run_that_exists_is_refused_unless_the_mode_resumes_it(mode, command, tmp_path):
    run = tmp_path / "runs" / "grpo-addition" / "old"
    (run / "logs").mkdir(parents=True)
    start = ("--config", "grpo.yaml", "tracker=none", "trial_name=old")
    refused = command.refusal(*start, f"recover.mode={mode}")
    assert "trial_name" in refused and f"the run directory {run} exists" in refused and "--replace" in refused
    plan = " ".join(command(*start, "recover.mode=auto", "--dry-run").out.split())
    assert "from the beginning" in plan
