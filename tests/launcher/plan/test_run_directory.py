"""The directory that a run would use, without creating it."""

import json
import shutil
from pathlib import Path

import pytest

from areal_like.config.load import load
from areal_like.discovery import announce, name_store_for
from areal_like.models import model_folder
from areal_like.process.identity import Identity
from areal_like.process.run import StartPoint, open_run
from areal_like.process.scrubbed_output import scrubbed
from launcher.commands.show_config import configuration_text
from launcher.plan.build import build_plan
from launcher.plan.render import render
from launcher.plan.render_brief import render_brief
from launcher.plan.run_directory import next_trial
from launcher.runs.checkpoints import complete_steps, move_aside_after
from launcher.runs.run_files import config_text, provenance_text, write_start_point
from tests.support.planning import loaded, machine_with, plan_of


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
    assert all(process.log.startswith(plan.run_dir) for process in plan.processes if process.log)


def test_an_empty_directory_counts_as_free(tmp_path):
    (tmp_path / "grpo-addition" / "first").mkdir(parents=True)
    directory, _ = directory_of(tmp_path, "trial_name=first")
    assert (directory.state, directory.reason) == ("new", "exists and is empty")


def test_an_existing_directory_is_refused_with_three_options(tmp_path):
    made(tmp_path / "grpo-addition" / "first", 5)
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=disabled")
    assert directory.state == "exists"
    (reason,) = (need.message for need in plan.needs if need.key == "trial_name")
    for way in ("trial_name=", f"resume={tmp_path}/grpo-addition/first", "--replace"):
        assert way in reason


def test_resuming_is_not_offered_without_a_checkpoint(tmp_path):
    run = made(tmp_path / "grpo-addition" / "first")
    (run / "config.yaml").write_text("recover: {mode: disabled}\n")
    _, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=disabled")
    (reason,) = (need.message for need in plan.needs if need.key == "trial_name")
    assert "--replace" in reason and "resume=" not in reason and "because recover.mode was disabled" in reason
    _, plan = directory_of(tmp_path, "resume=first")
    (reason,) = (result.message for result in plan.cannot_start if result.key == "resume")
    assert "because recover.mode was disabled; recover.mode=auto saves one" in reason


def test_recover_resumes_from_the_newest_complete_checkpoint(tmp_path):
    made(tmp_path / "grpo-addition" / "first", 5, 20, 10)
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=auto")
    assert (directory.state, plan.needs) == ("continues", ())
    assert "from step 20" in directory.reason


@pytest.mark.parametrize("words", [("trial_name=first", "recover.mode=auto"), ("resume=first",)])
def test_a_checkpoint_that_was_moved_aside_is_resumed_until_there_are_newer_ones(tmp_path, words):
    """By recover.skip_progress, in an attempt that ended before it wrote one of its own."""
    run = made(tmp_path / "grpo-addition" / "first", 5)
    moved = move_aside_after(run, 0, 2)
    write_start_point(run, StartPoint(2, 0, moved[0]))
    directory, _ = directory_of(tmp_path, *words)
    assert (directory.state, directory.step, directory.attempt) == ("continues", None, 3)
    assert directory.reason.startswith("resuming from checkpoints/before-attempt-2/step_000005 (")
    shutil.copytree(moved[0], run / "checkpoints" / "step_000001")
    assert directory_of(tmp_path, *words)[0].step == 1


def test_recover_without_a_checkpoint(tmp_path):
    made(tmp_path / "grpo-addition" / "first")
    assert directory_of(tmp_path, "trial_name=first", "recover.mode=auto")[0].state == "continues"
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=resume")
    assert directory.state == "exists"
    assert "recover.mode" in {need.key for need in plan.needs}


def test_replace_starts_over(tmp_path):
    made(tmp_path / "grpo-addition" / "first", 5)
    directory, plan = directory_of(tmp_path, "trial_name=first", "recover.mode=disabled", replace_existing=True)
    assert (directory.state, plan.needs) == ("replaced", ())


@pytest.mark.parametrize("way", ["{root}/other/theirs", "other/theirs", "theirs"])
def test_a_run_to_resume_is_found_by_folder_full_name_or_trial(tmp_path, way):
    made(tmp_path / "other" / "theirs", 3, 8)
    directory, plan = directory_of(tmp_path, f"resume={way.format(root=tmp_path)}")
    assert (directory.state, plan.run_dir) == ("continues", f"{tmp_path}/other/theirs")
    assert "from step 8" in directory.reason
    assert f"{tmp_path}/other/theirs" in plan.processes[-1].command


@pytest.mark.shows("resume_step")
def test_a_step_to_resume_from(tmp_path):
    made(tmp_path / "other" / "theirs", 0, 3, 8)
    assert "from step 3" in directory_of(tmp_path, "resume=theirs", "resume_step=3")[0].reason
    assert "from step 0" in directory_of(tmp_path, "resume=theirs", "resume_step=0")[0].reason
    assert "from step 8" in directory_of(tmp_path, "resume=theirs", "resume_step=-1")[0].reason
    directory, plan = directory_of(tmp_path, "resume=theirs", "resume_step=4")
    assert directory.state == "exists"
    assert any(result.key == "resume_step" and "0, 3, 8" in result.message for result in plan.cannot_start)


def test_an_ambiguous_trial_is_refused_with_both_runs(tmp_path, monkeypatch):
    for name, summary in (("one", '{"outcome": "done", "steps": 7}'), ("two", None)):
        run = made(tmp_path / name / "theirs", 1)
        if summary:
            (run / "summary.json").write_text(summary)
    directory, plan = directory_of(tmp_path, "resume=theirs")
    assert directory.state == "missing"
    (obstacle,) = (each for each in plan.cannot_start if each.key == "resume")
    title, *lines = obstacle.message.splitlines()
    assert title == "theirs is the name of 2 runs; name one by its folder:"
    assert f"  {tmp_path}/one/theirs  (done, 7 steps, started 2" in "\n".join(lines)
    assert f"  {tmp_path}/two/theirs  (did not end normally, started 2" in "\n".join(lines)
    assert f"    {tmp_path}/two/theirs" in render(plan, width=200)


def test_incomplete_checkpoints_do_not_count(tmp_path):
    assert complete_steps(made(tmp_path / "run", 7)) == [7]
    assert complete_steps(tmp_path / "nothing") == []


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    plan = plan_of("grpo", "cluster.fileroot='~/runs'", "trial_name=t", host=machine_with())
    assert plan.run_dir == f"{tmp_path}/runs/grpo-addition/t"


@pytest.mark.parametrize(("run", "where"), [("foo", "grpo-addition/foo"), ("other/foo", "other/foo")])
def test_an_unknown_run_to_resume_is_refused_with_the_existing_ones(tmp_path, run, where):
    directory, plan = directory_of(tmp_path, f"resume={run}")
    assert (directory.state, plan.run_dir) == ("missing", f"{tmp_path}/{where}")
    lines = render(plan).splitlines()
    assert lines[0] == f"grpo: {where}"
    assert any(line.startswith(f"  - resume [override resume={run}]: no run is called {run} under") for line in lines)


def going_on(tmp_path, was, *words):
    """Obstacles to going on with a run of 8 steps whose own configuration says `was` of its model."""
    run = made(tmp_path / "other" / "theirs", 3, 8)
    (run / "config.yaml").write_text(json.dumps({"experiment_name": "other", "model": was}), "utf-8")
    fileroot = f"cluster.fileroot={tmp_path}"
    return {result.key: result.message for result in plan_of("sft", fileroot, "resume=theirs", *words).cannot_start}


ADAPTED = {
    "optimizer": {"type": "adam"},
    "use_lora": True,
    "lora_rank": 8,
    "target_modules": ["k_proj", "q_proj"],
    "lora_modules_to_save": [],
}
SAME = {"model.use_lora": "true", "model.lora_rank": "8", "model.target_modules": "[q_proj,k_proj]"}


def words(**message):
    """Those of the same run, but for some."""
    changed = {f"model.{name.replace('__', '.')}": value for name, value in message.items()}
    return [f"{key}={value}" for key, value in {**SAME, **changed}.items()]


@pytest.mark.parametrize(
    ("name", "now", "was"),
    [
        ("optimizer__type", "muon", "adam"),
        ("use_lora", "false", "true"),
        ("lora_rank", "16", "8"),
        ("target_modules", "[]", "[k_proj, q_proj]"),
        ("lora_modules_to_save", "[lm_head]", "[]"),
    ],
)
def test_a_change_that_does_not_fit_the_checkpoint_is_refused_with_remedy(tmp_path, name, now, was):
    ((key, reason),) = going_on(tmp_path, ADAPTED, *words(**{name: now})).items()
    assert key == f"model.{name.replace('__', '.')}"
    assert f"is {now}, and the checkpoint of step 8 was made with {was}" in reason
    assert f"keep that value, or start a new run from those weights with model.path={tmp_path}/other" in reason


def test_changes_that_fit_the_checkpoint_are_accepted(tmp_path):
    assert going_on(tmp_path, ADAPTED, *words(lr="1e-4", lora_alpha="8")) == {}


def test_unused_adapters_are_not_compared_and_all_linear_is_one_value(tmp_path):
    assert going_on(tmp_path / "1", {**ADAPTED, "use_lora": False}, "model.lora_rank=16") == {}
    everywhere = {**ADAPTED, "target_modules": ["all-linear"]}
    assert going_on(tmp_path / "2", everywhere, *words(target_modules="[]")) == {}


def test_the_same_command_is_checked_against_its_checkpoint(tmp_path):
    run = made(tmp_path / "sft-addition" / "mine", 5)
    (run / "config.yaml").write_text("model: {optimizer: {type: sgd}}\n", "utf-8")
    plan = plan_of("sft", f"cluster.fileroot={tmp_path}", "trial_name=mine")
    assert [result.key for result in plan.cannot_start] == ["model.optimizer.type"]
    assert plan_of("sft", f"cluster.fileroot={tmp_path}", "trial_name=mine", replace_existing=True).cannot_start == ()


def test_fewer_steps_than_done_are_refused_with_both_numbers(tmp_path):
    ((key, reason),) = going_on(tmp_path, {}, "total_train_steps=5").items()
    assert key == "total_train_steps" and "is 5" in reason and "8 steps" in reason and "more than 8" in reason


@pytest.mark.parametrize("message", [["8"], ["5", "resume_step=3"], ["5", "recover.skip_progress=true"]])
def test_more_steps_than_done_are_accepted(tmp_path, message):
    assert going_on(tmp_path, {}, f"total_train_steps={message[0]}", *message[1:]) == {}


def test_a_live_run_is_not_resumed_continued_or_replaced(tmp_path):
    """Whether it has a checkpoint or not; its names tell who holds it, and a plan looks at these."""
    run = made(tmp_path / "grpo-addition" / "mine")
    values = loaded("grpo", "trial_name=mine", f"cluster.name_resolve.nfs_record_root={tmp_path}/names")
    (run / "config.yaml").write_text(configuration_text(values))
    with name_store_for(values.config, tmp_path, "pid 12") as names:
        announce(names, Identity("launcher", 0), "")
        for words, key in ((["resume=mine"], "resume"), (["trial_name=mine"], "trial_name")):
            for replace_existing in (False, True):
                directory, plan = directory_of(tmp_path, *words, replace_existing=replace_existing)
                (reason,) = (each.message for each in (*plan.cannot_start, *plan.needs) if each.key == key)
                assert "grpo-addition/mine is already running (pid 12 on host " in reason
                assert directory.state == "exists" and "checkpoint" not in reason
    assert directory_of(tmp_path, "trial_name=mine", "recover.mode=auto")[0].state == "continues"


def started(tmp_path, *overrides, attempt=1):
    """A run with a checkpoint of step 5, as a start with these overrides leaves it."""
    words = (f"cluster.fileroot={tmp_path}", "trial_name=live", "recover.mode=auto", *overrides)
    plan = plan_of("grpo", *words)
    run = made(Path(plan.run_dir), 5, config=False)
    (run / "config.yaml").write_text(config_text(loaded("grpo", *words), plan), "utf-8")
    (run / "provenance.yaml").write_text(provenance_text(loaded("grpo", *words), plan), "utf-8")
    (run / "attempt.json").write_text(json.dumps(StartPoint(attempt, 0, None)._asdict()), "utf-8")
    return run, words


def changes(plan):
    return [warning for warning in plan.warnings if warning.startswith("changed since")]


def test_a_run_that_continues_by_name_names_the_values_that_changed(tmp_path):
    run, words = started(tmp_path)
    plan = plan_of("grpo", *words, "gconfig.n_samples=4", "+task.args.digits=3")
    assert plan.warnings[0] == (
        "changed since attempt 1: gconfig.n_samples 8 -> 4, task.args.digits not set -> 3; "
        f"`resume={run}` without --config keeps the old values"
    ), "a key that follows gconfig.n_samples is not named as well"
    assert plan.warnings[0] in plan.to_json()["warnings"]
    assert "changed since attempt 1: gconfig.n_samples 8 -> 4" in render(plan) and "changed since" in render_brief(plan)
    many = ("seed=3", "actor.lr=1e-5", "gconfig.n_samples=4", "gconfig.temperature=0.9", "total_train_steps=200")
    (whole,) = changes(plan := plan_of("grpo", *words, *many))
    assert "seed 1 -> 3" in whole and "more" not in whole and "seed 1 -> 3" in " ".join(render(plan).split())
    assert "and 1 more (--dry-run=full); `resume=" in " ".join(render_brief(plan).split())


def test_resuming_a_run_with_its_own_configuration_shows_what_the_command_line_changes(tmp_path):
    run, _ = started(tmp_path)
    own = load(run / "config.yaml", [f"resume={run}"])
    assert changes(build_plan(own, host=machine_with())) == []
    again = load(run / "config.yaml", [f"resume={run}", "gconfig.n_samples=4", "seed=3"])
    assert changes(build_plan(again, host=machine_with()))[0].startswith(
        "changed since attempt 1: gconfig.n_samples 8 -> 4, "
    )
    assert "seed 1 -> 3; leave them out to keep the old values" in changes(build_plan(again, host=machine_with()))[0]


def test_a_model_of_another_shape_is_refused_and_the_same_elsewhere_is_not(tmp_path):
    _, words = started(tmp_path)
    here = str(tmp_path / "here")
    shutil.copytree(model_folder("builtin:tiny-addition"), here)
    plan = plan_of("grpo", *words, f"actor.path={here}")
    assert [each for each in plan.cannot_start if each.key == "actor.path"] == []
    config = json.loads((tmp_path / "here" / "config.json").read_text())
    (tmp_path / "here" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    (problem,) = (each for each in plan_of("grpo", *words, f"actor.path={here}").cannot_start)
    assert problem.key == "actor.path" and "of which the checkpoint of step 5 is; keep that path" in problem.message


def test_a_checkpoint_whose_steps_do_not_count_is_compared_as_any_other(tmp_path):
    """After recover.skip_progress, in an attempt that ended before it wrote one of its own."""
    run, words = started(tmp_path, "actor.use_lora=true", "actor.lora_alpha=16")
    moved = move_aside_after(run, 0, 2)
    write_start_point(run, StartPoint(2, 0, moved[0]))
    again = plan_of("grpo", *words, "gconfig.n_samples=4", "actor.lora_alpha=64")
    assert again.run_directory.step is None and "gconfig.n_samples 8 -> 4" in changes(again)[0]
    (problem,) = (each for each in again.cannot_start if each.key == "actor.lora_alpha")
    assert "is 64.0, and the checkpoint of step 5 was made with 16.0" in problem.message
    assert f"actor.path={moved[0]}" in problem.message


def test_the_keys_that_decide_most_are_named_first_among_the_changed(tmp_path):
    _, words = started(tmp_path)
    many = ("saver.freq_steps=7", "evaluator.freq_steps=7", "seed=3", "recover.freq_steps=7", "actor.kl_ctl=0.1")
    plan = plan_of("grpo", *words, *many, "gconfig.n_samples=4", "batch_size=32", "actor.lr=1e-5")
    (line,) = changes(plan)
    assert line.startswith(
        "changed since attempt 1: train_dataset.batch_size 64 -> 32, actor.optimizer.lr 0.0003 -> 1e-05, "
        "gconfig.n_samples 8 -> 4, actor.kl_ctl 0.0 -> 0.1, "
    )
    shown = " ".join(render_brief(plan).split())
    assert "train_dataset.batch_size 64 -> 32" in shown and "saver.freq_steps 7" not in shown


def test_values_that_did_not_change_are_not_named(tmp_path):
    _, words = started(tmp_path)
    assert changes(plan_of("grpo", *words)) == changes(plan_of("grpo", *words, "gconfig.n_samples=8")) == []
    assert changes(plan_of("grpo", *words, cores=8)) == [], "each auto has the value of this machine"
    (line,) = changes(plan_of("grpo", *words, "rollout.num_episode_workers=1"))
    assert line.startswith("changed since attempt 1: rollout.num_episode_workers 4 -> 1; ")


def test_the_changes_of_a_continued_run_contain_no_secret(tmp_path):
    places = ("stats_logger.wandb.wandb_api_key={}", "+launcher.env.HF_TOKEN={}")
    _, words = started(tmp_path, *(place.format("first-secret") for place in places))
    plan = plan_of("grpo", *words[:3], *(place.format("other-secret") for place in places), "+launcher.env.LEVEL=2")
    (line,) = changes(plan)
    assert "launcher.env.LEVEL not set -> 2" in line and "secret" not in line, line


def test_processes_resolve_the_references_to_secrets_and_know_their_values(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_ACCESS", "planted-access")
    monkeypatch.chdir(tmp_path)
    methods = ("def __init__(self, api_key, text): pass", "def __call__(self, prompt, completion): return 0")
    (tmp_path / "judges.py").write_text("\n    ".join(("class Judge:", *methods)))
    given = (
        "reward.name=judges.py:Judge",
        "+reward.args.api_key='${oc.env:JUDGE_ACCESS}'",
        "+reward.args.text='\\${x}'",
    )
    run, _ = started(tmp_path, *given)
    facts = {"experiment": "grpo", "run_id": "id", "folder": str(tmp_path), "cwd": str(tmp_path)}
    (run / "run.json").write_text(json.dumps(facts), "utf-8")
    assert "planted-access" not in (run / "config.yaml").read_text("utf-8")
    assert open_run(run).config.reward.args == {"api_key": "planted-access", "text": "${x}"}
    assert scrubbed("refused planted-access") == "refused <secret>"
    monkeypatch.delenv("JUDGE_ACCESS")
    assert open_run(run).config.reward.args["api_key"] == "${oc.env:JUDGE_ACCESS}", "as for commands about a run"


def changes_after(tmp_path, edit, *more):
    """The changes after an edit of the text of the run's config.yaml, and the warnings that it cannot be compared."""
    run, words = started(tmp_path)
    file = run / "config.yaml"
    file.write_text(edit(file.read_text("utf-8")), "utf-8")
    plan = plan_of("grpo", *words, *more)
    return changes(plan), [warning for warning in plan.warnings if warning.startswith("config.yaml of attempt")]


def test_secrets_of_an_edited_earlier_configuration_are_not_shown(tmp_path):
    secrets = "wandb_api_key: sk-older-one\nmine: {hf_token: hf-older-one, password: {all: older-one}}\n"
    ((line,), _) = changes_after(tmp_path, lambda text: text + secrets)
    assert "older-one" not in line and "wandb_api_key <secret> -> not set, mine.hf_token <secret> -> not set" in line


def test_keys_and_values_of_an_edited_configuration_cannot_move_the_cursor(tmp_path):
    edit = '"k\\e[2J\\nfake": "v\\e]0;title\\a\\nfake line"\n'
    ((line,), _) = changes_after(tmp_path, lambda text: text + edit)
    assert r"k\x1b[2J\nfake v\x1b]0;title\x07\nfake line -> not set" in line


@pytest.mark.parametrize(
    "text",
    [
        "x: &a {b: *a}\n",
        f"x: {'[' * 5000}{']' * 5000}\n",
        "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]\n" for n in range(9)),
        "",
    ],
    ids=["refers to itself", "nested", "repeated", "empty"],
)
def test_a_start_survives_an_earlier_configuration_that_cannot_be_read(tmp_path, text):
    changed, (warning,) = changes_after(tmp_path, lambda _: text, "seed=3")
    assert not changed and warning.startswith("config.yaml of attempt 1: cannot be read; ")
    run, words = started(tmp_path / "2")
    (run / "provenance.yaml").write_text(text, "utf-8")
    assert "seed 1 -> 3" in changes(plan_of("grpo", *words, "seed=3"))[0]


def test_an_incomplete_earlier_configuration_is_reported_as_such(tmp_path):
    changed, (warning,) = changes_after(tmp_path, lambda text: text[: len(text) // 2].rpartition("\n")[0], "seed=3")
    assert warning.startswith("config.yaml of attempt 1: has no ") and " more; values" in warning
    assert "seed 1 -> 3" in changed[0] and "not set ->" not in changed[0]


def test_a_switch_that_became_a_number_is_a_change_and_long_keys_are_shortened(tmp_path):
    _, words = started(tmp_path, "+vllm.extra_args.chunked=true")
    assert "vllm.extra_args.chunked true -> 1" in changes(plan_of("grpo", *words[:3], "+vllm.extra_args.chunked=1"))[0]
    ((line,), _) = changes_after(tmp_path / "2", lambda text: f"{text}\n? {'k' * 20_000}\n: 1\n")
    assert "kkk... 1 -> not set" in line and len(line) < 400


def test_a_resumed_run_with_its_own_configuration_names_what_overrides_change(tmp_path):
    run, _ = started(tmp_path)
    assert changes(build_plan(load(run / "config.yaml", [f"resume={run}"]), host=machine_with())) == []
    own = build_plan(load(run / "config.yaml", [f"resume={run}", "gconfig.n_samples=4"]), host=machine_with())
    assert changes(own)[0].endswith("gconfig.n_samples 8 -> 4; leave them out to keep the old values")
    other = load(loaded("grpo").file, [f"resume={run}", "gconfig.n_samples=4"])
    assert "gconfig.n_samples 8 -> 4" in changes(build_plan(other, host=machine_with()))[0]


def test_changes_count_from_the_attempt_that_the_configuration_describes(tmp_path):
    run, words = started(tmp_path, attempt=3)
    (run / "config.attempt-3.yaml").touch()
    assert changes(plan_of("grpo", *words, "seed=7"))[0].startswith("changed since attempt 2: seed 1 -> 7; ")
