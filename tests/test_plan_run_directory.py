"""Which directory a run would use: found by looking, and never made."""

import pytest

from launcher.checkpoints import complete_steps
from launcher.plan import render
from launcher.plan.run_directory import next_trial
from tests.planning import machine_with, plan_of


def made(folder, *complete_steps, config=True):
    """A run directory with checkpoints of these steps, and a half-written one."""
    (folder / "logs").mkdir(parents=True)
    if config:
        (folder / "config.yaml").write_text("experiment_name: x\n", "utf-8")
    for step in complete_steps:
        checkpoint = folder / "checkpoints" / f"step_{step:06d}"
        (checkpoint / "resume").mkdir(parents=True)
        (checkpoint / "resume" / "state").write_text("all")
        (checkpoint / "manifest.json").write_text('{"parts": {"resume/state": {"bytes": 3, "hash": ""}}}')
        (checkpoint / ".complete").touch()
    (folder / "checkpoints" / "step_009999").mkdir(parents=True)
    return folder


def directory_of(tmp_path, *overrides, **rest):
    plan = plan_of("grpo", f"cluster.fileroot={tmp_path}", *overrides, **rest)
    return plan.run_directory, plan


def test_the_first_trial_is_r0001(tmp_path):
    directory, plan = directory_of(tmp_path)
    assert (directory.state, directory.trial) == ("new", "r0001")
    assert plan.run_dir == f"{tmp_path}/grpo-addition/r0001"
    assert not (tmp_path / "grpo-addition").exists()
    assert ("trial_name", "r0001") in {(resolved.key, resolved.value) for resolved in plan.auto}


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        ([], "r0001"),
        (["r0001"], "r0002"),
        (["r0001", "r0007", "mine", "r3", "r0002.tmp"], "r0008"),
        (["r9999"], "r10000"),
    ],
)
def test_the_next_free_trial_follows_the_highest(tmp_path, taken, free):
    for name in taken:
        (tmp_path / name).mkdir()
    assert next_trial(tmp_path)[0] == free


def test_a_named_trial_is_used(tmp_path):
    directory, plan = directory_of(tmp_path, "trial_name=first")
    assert (directory.state, plan.run_dir) == ("new", f"{tmp_path}/grpo-addition/first")
    assert all(process.log.startswith(plan.run_dir) for process in plan.processes)


def test_an_empty_directory_is_as_good_as_none(tmp_path):
    (tmp_path / "grpo-addition" / "first").mkdir(parents=True)
    directory, _ = directory_of(tmp_path, "trial_name=first")
    assert (directory.state, directory.reason) == ("new", "exists and is empty")


def test_a_directory_that_exists_is_refused_with_the_three_ways_on(tmp_path):
    made(tmp_path / "grpo-addition" / "first", 5)
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=disabled")
    assert directory.state == "exists"
    (warning,) = (warning for warning in plan.warnings if warning.startswith("trial_name:"))
    for way in ("trial_name=", "resume=grpo-addition/first", "--replace"):
        assert way in warning
    assert "trial_name" in {need.key for need in plan.needs}


def test_recover_goes_on_from_the_newest_complete_checkpoint(tmp_path):
    made(tmp_path / "grpo-addition" / "first", 5, 20, 10)
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=auto")
    assert (directory.state, plan.needs) == ("continues", ())
    assert "from step 20" in directory.reason


def test_recover_without_a_checkpoint(tmp_path):
    made(tmp_path / "grpo-addition" / "first")
    assert directory_of(tmp_path, "trial_name=first", "recover.mode=auto")[0].state == "continues"
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=resume")
    assert directory.state == "exists"
    assert "recover.mode" in {need.key for need in plan.needs}


def test_replace_begins_anew(tmp_path):
    made(tmp_path / "grpo-addition" / "first", 5)
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=disabled", anew=True)
    assert (directory.state, plan.needs) == ("replaced", ())


@pytest.mark.parametrize("way", ["{root}/other/theirs", "other/theirs", "theirs"])
def test_a_run_to_resume_is_found_by_folder_by_both_names_and_by_its_trial(tmp_path, way):
    made(tmp_path / "other" / "theirs", 3, 8)
    directory, plan = directory_of(tmp_path, f"resume={way.format(root=tmp_path)}")
    assert (directory.state, plan.run_dir) == ("continues", f"{tmp_path}/other/theirs")
    assert "from step 8" in directory.reason
    assert f"{tmp_path}/other/theirs" in plan.processes[-1].command


def test_a_step_to_resume_from(tmp_path):
    made(tmp_path / "other" / "theirs", 0, 3, 8)
    assert "from step 3" in directory_of(tmp_path, "resume=theirs", "resume_step=3")[0].reason
    assert "from step 0" in directory_of(tmp_path, "resume=theirs", "resume_step=0")[0].reason
    assert "from step 8" in directory_of(tmp_path, "resume=theirs", "resume_step=-1")[0].reason
    directory, plan = directory_of(tmp_path, "resume=theirs", "resume_step=4")
    assert directory.state == "exists"
    assert any(found.key == "resume_step" and "0, 3, 8" in found.reason for found in plan.cannot_start)


def test_a_trial_that_two_experiments_have_is_not_guessed(tmp_path):
    made(tmp_path / "one" / "theirs", 1)
    made(tmp_path / "two" / "theirs", 1)
    directory, plan = directory_of(tmp_path, "resume=theirs")
    assert directory.state == "missing"
    assert "resume" in {found.key for found in plan.cannot_start}


def test_half_written_checkpoints_do_not_count(tmp_path):
    assert complete_steps(made(tmp_path / "run", 7)) == [7]
    assert complete_steps(tmp_path / "nothing") == []


def test_the_users_home_is_written_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    plan = plan_of("grpo", "cluster.fileroot='~/runs'", "trial_name=t", host=machine_with())
    assert plan.run_dir == f"{tmp_path}/runs/grpo-addition/t"


@pytest.mark.parametrize(("run", "where"), [("foo", "grpo-addition/foo"), ("other/foo", "other/foo")])
def test_a_run_to_resume_that_is_not_there_is_named_and_listed(tmp_path, run, where):
    directory, plan = directory_of(tmp_path, f"resume={run}")
    assert (directory.state, plan.run_dir) == ("missing", f"{tmp_path}/{where}")
    lines = render(plan).splitlines()
    assert lines[0] == f"grpo: {where}"
    assert any(line.startswith(f"  - resume: no run {run} is found") for line in lines)
