"""Files of a run directory, the lock on it, and the registry of runs."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
import yaml

from areal_like.config.load import load
from areal_like.discovery.base import Holder
from areal_like.discovery.owner import this_process
from areal_like.process.atomic_file import replace_with_backup
from areal_like.process.run import open_run
from launcher.plan.auto import resolved_values
from launcher.plan.build import build_plan
from launcher.runs.environment_record import write_environment_record
from launcher.runs.registry import look_up, register, run_state, running_text
from launcher.runs.run_files import config_text, provenance_text, write_description
from tests.support.commands import command_runner
from tests.support.fake_runs import leftover_processes, memory_of, start_fake_run

SECRET = "sk-0123456789abcdef"


def described(folder, *words):
    loaded = load("grpo.yaml", [f"cluster.fileroot={folder}", "trial_name=t", *words])
    plan = build_plan(loaded)
    directory = Path(plan.run_dir)
    directory.mkdir(parents=True, exist_ok=True)
    write_description(loaded, plan, "id", folder, folder, 1)
    return loaded, plan, directory


def test_the_processes_of_a_run_read_the_values_that_it_was_planned_with(tmp_path):
    words = [
        "actor.lr=1e-05",
        "launcher.env={A: '1:30', B: 'yes', C: '1e5', D: '007'}",
        "actor.optimizer.weight_decay=1e-20",
    ]
    loaded, plan, directory = described(tmp_path, *words)
    run = open_run(directory)
    assert run.config.actor.optimizer.lr == 1e-05
    assert run.config.launcher.env == {"A": "1:30", "B": "yes", "C": "1e5", "D": "007"}
    assert run.config.rollout.backend == "embedded:d1"
    assert (run.run_id, run.folder, run.cwd, run.experiment) == ("id", tmp_path, tmp_path, "grpo")
    from areal_like.config.loaded import build_config

    assert run.config == build_config(loaded.cls, resolved_values(loaded, plan.auto))


def test_its_config_yaml_composes_again_to_the_same(tmp_path):
    loaded, plan, directory = described(tmp_path, "actor.lr=1e-05")
    again = load(directory / "config.yaml")
    assert again.values == resolved_values(loaded, plan.auto)
    assert again.experiment == "grpo"


def test_resume_options_are_not_written_into_the_run(tmp_path):
    loaded = load("grpo.yaml", [f"cluster.fileroot={tmp_path}", "resume=x", "resume_step=3"])
    message = yaml.safe_load(config_text(loaded, build_plan(loaded)))
    assert (message["resume"], message["resume_step"]) == (None, None)


def test_no_file_holds_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("OWN_API_KEY", SECRET)
    other = "another-0123456789"
    words = [f"+launcher.env.SERVICE_TOKEN={other}", "stats_logger.swanlab.api_key=${oc.env:OWN_API_KEY}"]
    _, _, directory = described(tmp_path, *words)
    for path in directory.iterdir():
        if path.is_file():
            assert SECRET not in path.read_text() and other not in path.read_text(), path.name
    assert "${oc.env:OWN_API_KEY}" in (directory / "config.yaml").read_text()


def test_the_provenance_names_the_source_and_the_overridden_value(tmp_path):
    loaded, plan, _ = described(tmp_path, "actor.lr=1e-4")
    message = yaml.safe_load(provenance_text(loaded, plan))
    entry = message["actor.optimizer.lr"]
    assert (entry["value"], entry["from"]) == (1e-4, "override actor.lr=1e-4")
    assert any("0.0003" in beaten and "experiments/grpo.yaml" in beaten for beaten in entry["beats"])
    assert message["actor.attn_impl"]["from"] == "auto" and message["actor.attn_impl"]["because"]


def test_files_that_a_new_start_would_overwrite_are_kept(tmp_path):
    loaded, plan, directory = described(tmp_path)
    before = {}
    for attempt, seed in ((1, 1), (3, 9), (4, 9)):
        if attempt > 1:
            loaded = load("grpo.yaml", [f"cluster.fileroot={tmp_path}", "trial_name=t", f"seed={seed}"])
            plan = build_plan(loaded)
            write_description(loaded, plan, f"id{attempt}", tmp_path, tmp_path, attempt)
        write_environment_record(directory, [], loaded.redactor, partial(_seeded, seed), attempt)
        before[attempt] = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        for name in ("summary.json", "curve.svg"):
            (directory / name).write_text(f"the end of attempt {attempt}")
            before[attempt][name] = (directory / name).read_bytes()
    of_a_start = {"config.yaml", "provenance.yaml", "command.txt", "run.json", "summary.json", "curve.svg"}
    assert of_a_start | {"environment.txt"} <= before[1].keys()
    for name, content in before[1].items():
        stem, _, suffix = name.rpartition(".")
        assert (directory / f"{stem}.until-attempt-2.{suffix}").read_bytes() == content, name
    for name in ("config", "command", "provenance"):
        assert not list(directory.glob(f"{name}.until-attempt-3.*")), "it did not change"
    assert (directory / "summary.until-attempt-3.json").read_text() == "the end of attempt 3"
    assert "seed=9" in (directory / "command.txt").read_text()
    assert open_run(directory).config.seed == 9


def _seeded(seed: int, text: str) -> str:
    """Surroundings that differ from start to start."""
    return f"{text}\nseed {seed}\n"


def test_an_interrupted_start_does_not_overwrite_kept_files(tmp_path):
    path, kept = tmp_path / "command.txt", tmp_path / "command.until-attempt-1.txt"
    for text in ("one", "two", "three"):
        replace_with_backup(path, text, kept)
    assert (path.read_text(), kept.read_text()) == ("three", "one")


def test_a_complete_start_records_its_environment(tmp_path):
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "mine.py").write_text("before\n")
    subprocess.run(["git", "add", "mine.py"], cwd=tmp_path, check=True)
    subprocess.run(["git", *name, "commit", "-qm", "x"], cwd=tmp_path, check=True)
    (tmp_path / "mine.py").write_text(f"after\napi_key={SECRET}\n")
    (tmp_path / "keys.env").write_text(f"OWN_TOKEN={SECRET}\n")
    faults = {"server/0 1.1": {"do": f"say {SECRET}"}}
    ended = start_fake_run(tmp_path, "launcher.env_file=[keys.env]", steps=2, step_s=30, faults=faults).wait()
    assert ended.code == 1
    assert "torch==" in (ended.directory / "environment.txt").read_text()
    code = (ended.directory / "code.txt").read_text()
    assert f"{tmp_path} at " in code and "+after" in code
    assert SECRET not in code + ended.err + ended.out, "the log has what a process prints; what is shown of it has not"


def test_the_name_of_a_running_run_is_refused_with_its_owner(tmp_path):
    run = start_fake_run(tmp_path, "trial_name=t", steps=1000)
    run.until("metrics/trainer-0.jsonl")
    before = (run.directory / "attempt.json").read_text()
    assert run_state(run.directory) == "running"
    second = start_fake_run(tmp_path, "trial_name=t", "--replace").wait()
    assert second.code == 2
    assert f"grpo-addition/t is already running (pid {run.process.pid} on host " in second.err
    assert "trial_name" in second.err and "Traceback" not in second.err
    assert (run.directory / "attempt.json").read_text() == before
    run.process.terminate()
    assert run.wait().code == 75
    assert run_state(run.directory).startswith("stopped, ")
    kept = start_fake_run(tmp_path, "trial_name=t", "--replace", steps=2).wait()
    assert (kept.code, kept.steps()) == (0, [1, 2]), kept
    assert (tmp_path / "runs" / "grpo-addition" / "t.replaced-1" / "metrics.jsonl").exists()
    assert "t.replaced-1" in kept.out


def test_answers_of_another_run_in_a_shared_folder_are_not_taken_for_its_own(tmp_path):
    folder, words = (
        tmp_path / "answers/grpo-addition/t",
        ("trial_name=t", f"evaluator.save.disk_path={tmp_path}/answers"),
    )
    (folder / "step_000000").mkdir(parents=True)
    refused = start_fake_run(tmp_path, *words).wait()
    assert refused.code == 2 and f"evaluator.save.disk_path: {folder} has the answers of another run" in refused.err
    (tmp_path / "runs/grpo-addition/t").mkdir(exist_ok=True)
    (tmp_path / "runs/grpo-addition/t/kept").touch()
    replaced = start_fake_run(tmp_path, *words, "--replace", steps=1).wait()
    assert replaced.code == 0 and (folder.with_name("t.replaced-1") / "step_000000").is_dir(), replaced


def test_two_starts_at_once_are_two_runs(tmp_path):
    with ThreadPoolExecutor() as pool:
        runs = [start_fake_run(tmp_path, steps=1) for _ in range(2)]
        ended = list(pool.map(lambda run: run.wait(), runs))
    assert [one.code for one in ended] == [0, 0], ended
    assert {path.name for path in (tmp_path / "runs" / "grpo-addition").iterdir()} == {"r0001", "r0002"}


def test_leftover_shared_memory_is_freed_by_the_next_start_of_any_run(tmp_path):
    """As after launcher and guardian were killed at the same moment."""
    first = start_fake_run(tmp_path, "trial_name=t", steps=1)
    assert first.wait().code == 0
    left = memory_of(first.directory)
    (left / "v000002").mkdir(parents=True)
    (left / "segments-server-0.json").write_text("{")
    (tmp_path / "other").mkdir()
    other = start_fake_run(tmp_path / "other", steps=1).wait()
    assert other.code == 0, other
    assert not left.exists()


def test_a_trial_name_of_two_runs_is_not_guessed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("one", "two"):
        (tmp_path / name / "t").mkdir(parents=True)
        (tmp_path / name / "t" / "config.yaml").touch()
        register(name, "t", tmp_path / name / "t")
    assert len(look_up("t")) == 2
    assert look_up("one/t") == [tmp_path / "one" / "t"]
    (tmp_path / "two" / "t" / "config.yaml").unlink()
    assert look_up("t") == [tmp_path / "one" / "t"], "a deleted run does not count"


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "runs").write_text("a file")
    ended = start_fake_run(tmp_path).wait()
    assert ended.code == 2
    title, problem, count = ended.err.splitlines()
    assert title == "this run cannot start here:" and problem.startswith("cluster.fileroot "), ended.err
    assert problem.endswith("/runs is a file; set another folder") and count == "1 problem; nothing was started."


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root alone")
def test_a_full_disk_is_one_message(tmp_path):
    directory = tmp_path / "runs" / "grpo-addition" / "t"
    directory.mkdir(parents=True)
    mounts = 'mount -t tmpfs -o size=24k small "$0" && exec "$@"'
    ended = start_fake_run(
        tmp_path, "trial_name=t", within=("unshare", "-m", "sh", "-c", mounts, str(directory))
    ).wait()
    assert ended.code == 1
    assert ended.err.startswith("cluster.fileroot: ") and "No space left on device" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert leftover_processes(tmp_path) == {}


def test_a_name_of_runs_in_several_clones_lists_them_to_every_verb(tmp_path, capsys, monkeypatch):
    run = command_runner(tmp_path, capsys, monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    places = [tmp_path / clone / "runs" / "adding" / "r0001" for clone in ("here", "there", "gone")]
    for place in places:
        (place / "checkpoints").mkdir(parents=True)
        (place / "config.yaml").touch()
        register("adding", "r0001", place)
    (places[2] / "config.yaml").unlink()
    for name in ("r0001", "adding/r0001"):
        for words in (("chat", name), (f"resume={name}",), (f"resume={name}", "--config", "grpo")):
            message = run.refusal(*words)
            assert f"{name} is the name of 2 runs; name one by its folder:" in message
            assert all(f"  {place}  (did not end normally, started 2" in message for place in places[:2]), message
            assert str(places[2]) not in message
        message = run.refusal("--config", "grpo", "reward.name=model", f"+reward.args.path={name}")
        assert f"reward.args.path: {name} is the name of 2 runs" in message
    monkeypatch.chdir(tmp_path / "here")
    assert "is the name of" not in run.refusal("chat", "adding/r0001"), "what is here goes before what is elsewhere"
    monkeypatch.chdir(tmp_path)
    assert "has no model to read" in run.refusal("chat", "adding/r0001", f"fileroot={tmp_path}/there/runs")


@pytest.mark.parametrize(
    ("claimed", "shown"),
    [
        ("2026-03-05 09:30:00 +0000", "11:30"),
        ("2026-03-04 23:10:00 +0000", "01:10"),
        ("2026-03-04 12:00:00 +0000", "2026-03-04 14:00"),
        ("unreadable", "unreadable"),
    ],
)
def test_the_start_of_a_run_on_another_host_is_shown_in_local_time(monkeypatch, claimed, shown):
    """In a time zone two hours ahead, at 12:00 of 2026-03-05."""
    monkeypatch.setenv("TZ", "<+02>-02")
    time.tzset()
    try:
        noon = datetime(2026, 3, 5, 12, 0)
        owner = this_process()._replace(host="far")
        claim = Holder(owner, "pid 12", claimed)
        text = running_text(Path("x/y"), claim, noon)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text == f"x/y is already running (pid 12 on host far, since {shown})"
