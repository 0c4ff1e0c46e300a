"""Runs of fake processes under the real launcher: they start, fail, are restarted and end as promised."""

import getpass
import json
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from areal_like.discovery import file_name_store
from areal_like.process.atomic_file import write_atomic
from areal_like.process.run import open_run
from tests.support.fake_runs import leftover_processes, memory_of, start_fake_run


def test_a_successful_run_exits_with_0_and_leaves_only_its_files(tmp_path):
    ended = start_fake_run(tmp_path, "+launcher.env.GREETING=hello", steps=5).wait()
    assert ended.code == 0, ended
    assert (ended.steps(), ended.err) == ([1, 2, 3, 4, 5], "")
    assert {"outcome": "done", "exit_code": 0, "attempts": 1, "steps": 5}.items() <= ended.summary.items()
    logs = {path.name for path in (ended.directory / "logs").iterdir()}
    assert logs == {"server-0.log", "rollout-0.log", "episodes-0.log", "trainer-0.log", "launcher-0.stacks"}
    assert "ready" in ended.out and "done: 5 steps" in ended.out
    assert leftover_processes(tmp_path) == {}
    assert not list((tmp_path / "runs" / ".names").rglob("*@entry"))


def test_server_and_worker_are_replaced_without_other_restarts(tmp_path):
    kill = {"do": "kill", "after_s": 0.3}
    run = start_fake_run(tmp_path, steps=30, faults={"server/0 1.1": kill, "episodes/0 1.1": kill})
    run.until("logs/server-0.restart-2.log")
    run.until("logs/episodes-0.restart-2.log")
    ended = run.wait()
    assert (ended.code, ended.steps()) == (0, list(range(1, 31))), ended
    assert "server/0 failed (killed by signal 9 (SIGKILL))" in ended.out
    assert ended.log("server-0.restart-2.log") == "server/0 of attempt 1, incarnation 2\n"
    assert ended.summary["attempts"] == 1
    assert not (ended.directory / "logs" / "trainer-0.attempt-2.log").exists()


@pytest.mark.shows("recover.mode")
def test_a_killed_trainer_or_controller_costs_one_attempt_and_no_step(tmp_path):
    faults = {"trainer/0 1.1": {"step": 5, "do": "kill"}, "rollout/0 2.1": {"after_s": 0.5, "do": "exit 1"}}
    ended = start_fake_run(tmp_path, steps=30, faults=faults).wait()
    assert (ended.code, ended.steps()) == (0, list(range(1, 31))), ended
    assert ended.summary["attempts"] == 3
    assert "attempt 2 resumes from step 4" in ended.out
    cut = [json.loads(line)["step"] for line in (ended.directory / "metrics.attempt-1.jsonl").read_text().splitlines()]
    assert cut == [5]
    for role in ("trainer", "rollout", "episodes"):
        assert ended.log(f"{role}-0.attempt-3.log").startswith(f"{role}/0 of attempt 3, incarnation 1")
    assert ended.log("server-0.log") == "server/0 of attempt 1, incarnation 1\n", "it stayed"


@pytest.mark.shows("recover.mode")
def test_without_recovery_a_killed_trainer_ends_the_run(tmp_path):
    ended = start_fake_run(
        tmp_path, "recover.mode=disabled", faults={"trainer/0 1.1": {"step": 3, "do": "kill"}}
    ).wait()
    assert ended.code == 1
    assert ended.err.splitlines()[2].startswith("trainer/0 failed (killed by signal 9 (SIGKILL)) after"), ended.err
    assert re.search(r"^  it had used up to \d+ MiB of memory and \d+ s of CPU time$", ended.err, re.MULTILINE), (
        ended.err
    )
    assert "recover.mode=disabled" in ended.err
    assert leftover_processes(tmp_path) == {}


def test_the_message_of_a_failed_process_is_printed(tmp_path):
    words = "reward.name: it raised 32 times"
    ended = start_fake_run(
        tmp_path, faults={"rollout/0 1.1": {"after_s": 0.2, "do": f"fail {words}"}}, step_s=30
    ).wait()
    assert ended.code == 1
    assert words in ended.err
    assert "rollout/0 of attempt" not in ended.err, "what it says itself needs no log"


def test_a_final_failure_is_not_retried(tmp_path):
    words = "checkpoints: a checkpoint could not be written: No space left on device"
    ended = start_fake_run(tmp_path, faults={"trainer/0 1.1": {"step": 3, "do": f"give_up {words}"}}).wait()
    assert (ended.code, ended.summary["attempts"]) == (1, 1), ended
    assert words in ended.err


def test_damaged_weights_cost_one_server_and_then_the_run(tmp_path):
    words = "version 3 of the weights: tensor model.norm.weight: the served tensor is not the published one"
    damage = {"after_s": 0.3, "do": f"damage {words}"}
    ended = start_fake_run(tmp_path, steps=1000, faults={"server/0 1.1": damage, "server/0 1.2": damage}).wait()
    assert (ended.code, ended.summary["attempts"]) == (1, 1), ended
    (replaced,) = [line for line in ended.out.splitlines() if "it is replaced" in line]
    assert words in replaced and "(incarnation 2)" in replaced
    first, why = ended.err.splitlines()[2:4]
    assert first.startswith("server/0 failed (exit code 1)") and first.endswith(words)
    assert why == "  a server was already replaced because of damage to this version"


def test_a_configuration_error_found_late_leaves_no_trial(tmp_path):
    words = "task.name: mine.py has an error in line 3"
    ended = start_fake_run(tmp_path, faults={"episodes/0 1.1": {"do": f"refuse {words}"}}, step_s=30).wait()
    trial = tmp_path / "runs" / "grpo-addition" / "r0001"
    assert (ended.code, ended.err) == (2, f"{words}\nno step was made; {trial} was removed\n")
    assert not trial.exists() and leftover_processes(tmp_path) == {}


def test_a_refused_resume_does_not_change_the_runs_configuration(tmp_path):
    run = start_fake_run(tmp_path, "trial_name=mine", steps=2)
    assert run.wait().code == 0
    faults = {"episodes/0 2.1": {"do": "refuse task.name: no such thing"}}
    words = ("resume=mine", "seed=5", "total_train_steps=4")
    assert start_fake_run(tmp_path, *words, step_s=30, faults=faults).wait().code == 2
    assert open_run(run.directory).config.seed == 1
    assert "seed: 5\n" in (run.directory / "config.attempt-2.yaml").read_text(), "what was tried is kept"
    message = yaml.safe_load((run.directory / "provenance.yaml").read_text())
    assert message["trial_name"]["from"] == "override trial_name=mine"


def test_a_process_that_is_never_ready_is_named_with_limit_and_log_tail(tmp_path):
    ended = start_fake_run(
        tmp_path, "rollout.setup_timeout=5", faults={"server/0 1.1": {"do": "hang"}}, step_s=30
    ).wait()
    assert ended.code == 1
    assert "rollout.setup_timeout: server/0 was not ready within 5 s" in ended.err
    assert "    loading the model" in ended.err
    assert "rollout/0 ready" in ended.out


def test_ctrl_c_once_writes_a_checkpoint_that_the_same_command_resumes(tmp_path):
    run = start_fake_run(tmp_path, "trial_name=t", steps=1000)
    run.until_output("rollout/0 ready")
    run.until("metrics/trainer-0.jsonl")
    os.killpg(run.process.pid, signal.SIGINT)
    ended = run.wait()
    done = ended.steps()[-1]
    assert ended.code == 130, ended
    assert f"the newest checkpoint is of step {done}" in ended.err
    assert "resume=" in ended.err
    (ended.directory / "stop").unlink()
    (ended.directory / "finished").unlink()
    again = start_fake_run(tmp_path, "trial_name=t", steps=done + 2).wait()
    assert (again.code, again.steps()) == (0, list(range(1, done + 3))), again
    assert f"resuming from step {done} (attempt 2)" in again.out
    assert again.log("trainer-0.attempt-2.log")


def test_ctrl_c_before_the_first_step_ends_at_once(tmp_path):
    run = start_fake_run(tmp_path, step_s=60)
    run.until_output("rollout/0 ready")
    run.process.send_signal(signal.SIGINT)
    ended = run.wait()
    assert ended.code == 130 and "there is no checkpoint to resume from" in ended.err, ended
    assert leftover_processes(tmp_path) == {}


def test_ctrl_c_before_the_first_step_of_a_further_attempt_ends_at_once(tmp_path):
    """Its trainer, which is still starting, would die of the signal: no failure to tell of."""
    faults = {"trainer/0 1.1": {"step": 3, "do": "kill"}, "trainer/0 2.1": {"do": "hang"}}
    run = start_fake_run(tmp_path, faults=faults)
    run.until_output("attempt 2 resumes from step 2")
    run.until("logs/trainer-0.attempt-2.log")
    run.process.send_signal(signal.SIGINT)
    ended = run.wait()
    assert (ended.code, ended.summary["outcome"]) == (130, "interrupted"), ended
    assert "the newest checkpoint is of step 2" in ended.err and "while it was stopping" not in ended.err
    assert leftover_processes(tmp_path) == {}


def test_ctrl_c_twice_ends_at_once(tmp_path):
    run = start_fake_run(tmp_path, faults={"trainer/0 1.1": {"step": 1, "do": "wait"}})
    run.until_output("rollout/0 ready")
    run.until("metrics/trainer-0.jsonl")
    run.process.send_signal(signal.SIGINT)
    run.until_output("stopping")
    run.process.send_signal(signal.SIGINT)
    ended = run.wait()
    assert ended.code == 130, ended
    assert "there is no checkpoint to resume from" in ended.err
    assert leftover_processes(tmp_path) == {}


def test_without_recovery_a_stop_names_what_is_saved_and_a_valid_command(tmp_path):
    words = ("trial_name=t", "recover.mode=disabled")
    run = start_fake_run(tmp_path, *words, steps=1000, resumable=False)
    run.until_output("rollout/0 ready")
    run.until("metrics/trainer-0.jsonl")
    os.killpg(run.process.pid, signal.SIGINT)
    ended = run.wait()
    step = ended.steps()[-1]
    why = f"the checkpoint of step {step} contains only the model, because recover.mode was disabled"
    assert ended.code == 130, ended
    assert "recover.mode=disabled saves nothing to resume from; press Ctrl-C again to end at once" in ended.out
    assert f"{why}; recover.mode=auto saves what a run needs to resume" in ended.err
    assert "with a checkpoint" not in ended.out and "resume=" not in ended.err
    refused = start_fake_run(tmp_path, "resume=t").wait()
    assert refused.code == 2
    assert refused.err.count("\nresume ") == 1 and len(refused.err.splitlines()) == 3, refused.err
    assert why in refused.err and f"actor.path={ended.directory}/checkpoints/step_{step:06d}" in refused.err
    again = start_fake_run(tmp_path, *words).wait()
    assert again.code == 2 and "resume=" not in again.err and "--replace" in again.err, again.err
    assert start_fake_run(tmp_path, *words, "--replace", steps=1).wait().code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_scheduler_that_ends_the_job_gets_a_checkpoint_and_75(number, tmp_path):
    """Slurm warns all processes, which go on until the launcher stops them."""
    run = start_fake_run(tmp_path, steps=1000)
    run.until_output("rollout/0 ready")
    run.until("metrics/trainer-0.jsonl")
    for pid in [*(run.pids().values() if number == signal.SIGUSR1 else ()), run.process.pid]:
        os.kill(pid, number)
    ended = run.wait()
    assert (ended.code, ended.summary["outcome"], ended.summary["attempts"]) == (75, "stopped", 1), ended
    assert f"the newest checkpoint is of step {ended.steps()[-1]}" in ended.err


@pytest.mark.shows("recover.grace_s")
def test_a_step_that_exceeds_the_grace_time_of_a_stop_is_abandoned(tmp_path):
    run = start_fake_run(tmp_path, "recover.grace_s=0.5", faults={"trainer/0 1.1": {"step": 3, "do": "wait"}})
    run.until("checkpoints/step_000002/.complete")
    run.until_output("rollout/0 ready")
    os.kill(run.process.pid, signal.SIGUSR1)
    ended = run.wait()
    assert (ended.code, ended.summary["outcome"]) == (75, "stopped"), ended
    assert "recover.grace_s: rollout/0, trainer/0 did not end within 0.5 s" in ended.err
    assert "the newest checkpoint is of step 2" in ended.err and "resume=" in ended.err
    assert leftover_processes(tmp_path) == {}


@pytest.mark.parametrize("name", ["guardian", "launcher", "trainer/0"])
def test_a_killed_launcher_or_guardian_leaves_no_process(name, tmp_path):
    run = start_fake_run(tmp_path, "recover.retries=0", steps=1000, faults={"episodes/0 1.1": {"do": "orphan"}})
    run.until("metrics/trainer-0.jsonl")
    memory = memory_of(run.directory)
    run.until_true(memory.exists)
    run.until_true(lambda: any(other.startswith("episodes/0 (") for other in run.pids()))
    run.kill(name)
    ended = run.wait()
    assert ended.code == (-9 if name == "guardian" else 1)
    assert leftover_processes(tmp_path) == {}
    assert not memory.exists()
    if name == "launcher":
        assert "launcher/0 was killed by SIGKILL" in ended.err


@pytest.mark.shows("recover.retries")
def test_a_server_that_fails_repeatedly_ends_the_run(tmp_path):
    faults = {f"server/0 1.{number}": {"do": "kill"} for number in range(1, 9)}
    ended = start_fake_run(tmp_path, "recover.retries=1", step_s=30, faults=faults).wait()
    assert ended.code == 1
    assert "it died 2 times without a training step in between (recover.retries=1)" in ended.err
    assert ended.log("server-0.restart-2.log")


@pytest.mark.shows("recover.retries")
def test_servers_alone_end_when_one_fails_repeatedly(tmp_path):
    faults = {f"server/0 1.{number}": {"do": "kill"} for number in range(1, 9)}
    ended = start_fake_run(tmp_path, "serve", "recover.retries=1", faults=faults).wait()
    assert ended.code == 1
    assert "it died 2 times without a training step in between (recover.retries=1)" in ended.err


def test_a_worker_that_repeatedly_exits_with_0_ends_the_run_by_name(tmp_path):
    """Although steps are made all the while, as with other workers."""
    faults = {f"episodes/0 1.{number}": {"do": "exit 0", "after_s": 0.2} for number in range(1, 9)}
    constants = {"launcher.supervisor.supervisor.IDLE_WORKER_S": 0.3}
    ended = start_fake_run(tmp_path, "recover.retries=2", steps=1000, faults=faults, constants=constants).wait()
    assert ended.code == 1, ended
    assert ended.err.splitlines()[2].startswith("episodes/0 ended before the run did (exit code 0) after"), ended.err
    assert "it exited 3 times during the run" in ended.err and "recover.retries=2" in ended.err
    assert ended.summary["steps"] > 0
    assert {path.name for path in (ended.directory / "logs").glob("episodes-0*.log")} == {
        "episodes-0.log",
        "episodes-0.restart-2.log",
        "episodes-0.restart-3.log",
    }


def test_a_launcher_that_lost_its_name_ends_and_leaves_the_directory(tmp_path):
    run = start_fake_run(tmp_path, "cluster.name_resolve.ttl_s=0.5", steps=10_000)
    run.until("checkpoints/step_000002/.complete")
    with closing(file_name_store(tmp_path / "runs" / ".names", prefix(run), "a later launcher", 30.0)) as later:
        later.delete("launcher/0")
        later.add("launcher/0", "mine")
        ended = run.wait()
        assert (ended.code, leftover_processes(tmp_path)) == (1, {})
        assert "/launcher/0: this launcher has lost the name of its run (it is held by" in ended.err
        assert "a later launcher" in ended.err and str(ended.directory) in ended.err
        assert not (ended.directory / "summary.json").exists()
        assert later.get("launcher/0") == "mine" and not later.lost


def prefix(run):
    return "/".join([getpass.getuser(), *run.directory.parts[-2:]])


def test_a_launcher_whose_run_was_taken_over_follows_from_no_end_of_a_process(tmp_path):
    """A stalled one may see the end of its trainer before it learns that it has lost its name."""
    run = start_fake_run(tmp_path, steps=1000)
    run.until("metrics.jsonl")
    start = json.loads((run.directory / "attempt.json").read_text())
    write_atomic(run.directory / "attempt.json", json.dumps({**start, "attempt": 2}))
    for name, metric in (("rollout-0", "reward/mean"), ("trainer-0", "train/loss")):
        with (run.directory / "metrics" / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps({"step": 1001, "attempt": 2, "time": 0.0, metric: 1.0}) + "\n")
    run.kill("trainer/0")
    ended = run.wait()
    assert ended.code == 1 and "another launcher has begun attempt 2 of this run; attempt 1 writes" in ended.err, ended
    assert 1001 not in ended.steps(), "it does not join the metrics of the other"
    assert not (run.directory / "summary.json").exists()
    assert json.loads((run.directory / "attempt.json").read_text())["attempt"] == 2
    assert leftover_processes(tmp_path) == {}


def test_a_signal_while_the_last_metrics_are_sent_leaves_the_ending_as_it_is(tmp_path):
    """Else a scheduler would start a run again that is done."""
    held = tmp_path / "held"
    held.touch()
    run = start_fake_run(tmp_path, steps=2, hold_drain=str(held))
    run.until_true(held.with_suffix(".reached").exists)
    launcher = run.pids()["launcher"]
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(launcher, number)
    held.unlink()
    ended = run.wait()
    assert (ended.code, ended.summary["outcome"]) == (0, "done"), ended


def test_a_stalled_run_prints_once_what_it_waits_for(tmp_path):
    faults = {"trainer/0 1.1": {"step": 3, "do": "wait"}}
    constants = {f"launcher.supervisor.stall_detector.{name}": 0.5 for name in ("STALL_S", "FIRST_STEP_S")}
    run = start_fake_run(tmp_path, steps=6, faults=faults, constants=constants)
    run.until_output("no step for ")
    assert run.process.stdout is not None
    reason = run.process.stdout.readline()
    assert reason == "  trainer/0 waits for batch 5 from rollout/0 (at most 3600 s, rollout.request_timeout)\n", reason
    (run.directory / "go").touch()
    ended = run.wait()
    assert (ended.code, ended.steps()) == (0, [1, 2, 3, 4, 5, 6]), ended
    assert "no step for " not in ended.out


@pytest.mark.shows("log.file")
def test_a_failure_before_readiness_is_printed_and_not_retried(tmp_path):
    """Also where no logs are wanted: the end of one is shown all the same."""
    faults = {"server/0 1.1": {"do": "say no such model"}}
    ended = start_fake_run(tmp_path, "log.file=false", faults=faults, step_s=30).wait()
    assert ended.code == 1
    assert "server/0 failed (exit code 1)" in ended.err
    assert "    no such model" in ended.err.splitlines(), "the end of its log"
    assert "it is not restarted" in ended.err and "replaced" not in ended.out
    assert not list((ended.directory / "logs").glob("*.log"))


def test_a_run_resumes_from_its_newest_sound_checkpoint_or_an_earlier_step(tmp_path):
    run = start_fake_run(tmp_path, "trial_name=mine", steps=6)
    assert run.wait().code == 0
    checkpoints = run.directory / "checkpoints"
    (checkpoints / "step_000006" / "resume" / "state").write_text("!")
    (run.directory / "finished").unlink()
    again = start_fake_run(tmp_path, "trial_name=mine", steps=7).wait()
    assert (again.code, again.steps()) == (0, [1, 2, 3, 4, 5, 6, 7]), again
    assert "the checkpoint of step 6 is skipped: step_000006" in again.out, "its content is not what was written"
    assert "moved to checkpoints/before-attempt-2: step_000006" in again.out

    (run.directory / "finished").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    back = start_fake_run(tmp_path, "resume=mine", "resume_step=2", "seed=5", steps=5, cwd=elsewhere).wait()
    assert (back.code, back.steps()) == (0, [1, 2, 3, 4, 5]), back
    later = {path.name for path in (checkpoints / "before-attempt-3").iterdir()}
    assert later == {"step_000004", "step_000006"}
    assert Path(back.summary["model"]).name == "step_000004"
    assert not (elsewhere / "runs").exists()
    assert open_run(run.directory).config.seed == 5
    assert open_run(run.directory).start_point()[:2] == (3, 2)
