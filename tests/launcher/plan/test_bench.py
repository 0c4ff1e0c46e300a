"""`bench=true`: changed settings, and the report of a measured run."""

from pathlib import Path
from typing import Any

import pytest

from areal_like.observe.throughput import throughput, throughput_line, throughput_table
from areal_like.training.checkpoint import NOT_DUE, CheckpointManager
from launcher.plan.auto import resolved_values
from tests.launcher.plan.test_run_directory import made
from tests.support.planning import loaded, plan_of
from tests.support.training_runs import make_run, world


@pytest.mark.shows("bench")
@pytest.mark.parametrize("kind", ["grpo", "ppo", "sft", "reward_model"])
def test_bench_is_five_steps_without_evaluation_checkpoints_or_tracking(kind):
    tracked = ("stats_logger.wandb.mode=online", "stats_logger.swanlab.mode=cloud")
    words = ("bench=true", "saver.freq_steps=2", "recover.freq_epochs=1", "total_train_n_seqs=8", *tracked)
    plan = plan_of(kind, *words)
    assert plan.cannot_start == plan.needs == (), "trackers that it does not use need not be here"
    decided = {resolved.key: (resolved.value, resolved.reason) for resolved in plan.auto}
    assert decided["total_train_steps"][0] == plan.batch.total_steps == 5
    values: Any = resolved_values(loaded(kind, *words), plan.auto)
    assert values["valid_dataset"] is None and values["total_train_n_seqs"] is None
    assert values["total_train_epochs"] >= 5
    assert {values["stats_logger"][name]["mode"] for name in ("wandb", "swanlab")} == {"disabled"}
    assert values["recover"]["mode"] == "disabled"
    for section in ("saver", "evaluator", "recover"):
        assert {values[section][f"freq_{clock}"] for clock in ("steps", "epochs", "secs")} == {None}
    assert all(reason.startswith("bench: ") for key, (_, reason) in decided.items() if key.startswith("recover"))
    assert "(bench)" in plan.batch.words[-1]


def test_without_bench_nothing_is_changed():
    assert not [resolved for resolved in plan_of("grpo").auto if resolved.reason.startswith("bench")]


def test_steps_set_beside_bench_are_reported_to_have_no_effect():
    def messages(*words):
        return [warning for warning in plan_of("sft", *words).warnings if "measures 5 steps" in warning]

    assert messages("bench=true", "total_steps=9") == ["total_train_steps: has no effect: bench=true measures 5 steps"]
    assert messages("bench=true") == messages("total_steps=9") == []


def test_no_checkpoint_is_due_not_even_the_last(tmp_path):
    run = make_run(tmp_path / "run", "sft", "bench=true", "recover.freq_steps=1")
    assert CheckpointManager(run, world(), 10).due(4, is_last=True) == NOT_DUE


def test_bench_does_not_continue_an_existing_run(tmp_path: Path):
    made(tmp_path / "sft-addition" / "mine", 2)
    (problem,) = plan_of("sft", "bench=true", "trial_name=mine", f"cluster.fileroot={tmp_path}").cannot_start
    assert problem.key == "trial_name" and "always a new run" in problem.message


STEPS = [
    {"step": step, "perf/step_s": seconds, "perf/tokens_per_s": 100 / seconds, "perf/memory_gb": step / 2}
    for step, seconds in enumerate([5.0, 1.0, 2.0, 1.5], start=1)
]


def test_the_first_step_is_a_warm_up_and_does_not_count():
    result = throughput(STEPS)
    assert result["perf/step_s"] == 1.5
    assert result["perf/tokens_per_s"] == pytest.approx((100 + 50 + 100 / 1.5) / 3)
    assert result["perf/memory_gb"] == 2.0, "the most that was held"
    assert throughput_line(STEPS) == "72.2 tokens/s, 1.5 s a step, at most 2 GB (mean of 3 steps after the first)"
    assert throughput(STEPS[:1]) == {} and "two steps" in throughput_line(STEPS[:1])


def test_the_table_has_a_line_for_each_step_and_the_totals():
    rows = [line.split() for line in throughput_table([{"step": 1, "eval/loss": 1.0}, *STEPS])]
    assert rows[0] == ["step", "step", "s", "tokens/s", "memory", "GB"], (
        "columns of which nothing is known are left out"
    )
    assert rows[2:5] == [["2", "1", "100", "1"], ["3", "2", "50", "1.5"], ["4", "1.5", "66.67", "2"]]
    assert rows[6:] == [
        ["mean", "1.5", "72.22", "1.5"],
        ["std", "0.5", "25.46", "0.5"],
        ["min", "1", "50", "1"],
        ["max", "2", "100", "2"],
    ]
    assert throughput_table(STEPS[:1]) == []


def test_a_value_missing_in_one_step_is_averaged_over_the_others():
    steps = [{**line, "perf/generate_tokens_per_s": 7.0} if line["step"] != 3 else line for line in STEPS]
    rows = [line.split() for line in throughput_table(steps)]
    assert [row[3] for row in rows[2:5]] == ["7", "-", "7"] and rows[6][3] == "7"
