"""The live view and its diagnosis."""

import io
import math
import os
from typing import Any

import pytest

from areal_like.config.experiment import GRPOConfig
from areal_like.config.sections.actor import AdvantageConfig, NormConfig
from areal_like.observe.diagnosis import RunDiagnosis
from areal_like.observe.history import History
from areal_like.observe.progress import ProgressDisplay, is_live
from areal_like.observe.text import format_amount, format_duration, format_small, sparkline

VALUES = {
    "reward/mean": 0.71,
    "perf/tokens_per_s": 3140.0,
    "offpolicy/staleness_mean": 1.2,
    "offpolicy/logprob_diff_mean": 3.1e-6,
}


class Terminal(io.StringIO):
    """A stream that keeps what it shows, as a terminal of one height without end does."""

    encoding = "utf-8"

    def shown(self) -> list[str]:
        lines = [""]
        for part in self.getvalue().replace("\x1b[J", "\x1b[J\x00").split("\x1b["):
            if part[:-1].rstrip("F").isdigit() and part.endswith("F"):
                del lines[-1 - int(part[:-1]) :]
                lines.append("")
                continue
            text = part.removeprefix("J\x00")
            first, *rest = text.split("\n")
            lines[-1] += first
            lines += rest
        return lines[:-1]


def test_texts_of_other_processes_cannot_move_the_cursor() -> None:
    stream = Terminal()
    ProgressDisplay(2, stream=stream, live=False).say("the end of logs/trainer-0.log:\n\tbar \x1b[2J\r\x9b1m \u202eend")
    assert stream.getvalue() == "the end of logs/trainer-0.log:\n\tbar \\x1b[2J\\r\\x9b1m \\u202eend\n"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def config(**changes: Any) -> Any:
    cls: Any = GRPOConfig
    made = cls(experiment_name="adding")
    made.actor.dtype = made.embedded.dtype = "float32"
    made.rollout.backend = "embedded"
    made.actor.temperature = made.gconfig.temperature = 0.5
    for path, value in changes.items():
        section, _, name = path.partition("__")
        setattr(getattr(made, section), name, value)
    return made


def group_baseline() -> Any:
    cls: Any = NormConfig
    return cls(mean_level="group")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (format_amount(3140), "3.14k"),
        (format_amount(999.9), "1k"),
        (format_amount(12.34), "12.3"),
        (format_amount(2.5e6), "2.5M"),
        (format_amount(math.nan), "nan"),
        (format_small(3.1e-6), "3e-06"),
        (format_small(0.0213), "0.021"),
        (format_small(0.0), "0"),
        (format_duration(80), "1:20"),
        (format_duration(3723.4), "1:02:03"),
        (format_duration(-1), "0:00"),
        (sparkline([0, 1, 2, 3], 4), "▁▃▆█"),
        (sparkline([0, 0, 4, 4], 2), "▁█"),
        (sparkline([1, math.nan, 1], 4), "▁▁"),
        (sparkline([], 4), ""),
    ],
)
def test_values_are_formatted_briefly(word: str, text: str) -> None:
    assert word == text


def test_a_plain_line_shows_the_main_values() -> None:
    out, clock = io.StringIO(), Clock()
    progress = ProgressDisplay(160, 2, stream=out, clock=clock)
    progress.evaluation(0, {"eval/score": 0.45})
    for step in range(1, 13):
        clock.now += 1.0
        if step == 10:
            progress.evaluation(9, {"eval/score": 0.62})
        progress.step(step, VALUES)
    lines = out.getvalue().splitlines()
    assert lines[0] == "held-out 0.450 at the start"
    assert lines[10] == "held-out 0.620 at step 9", "each evaluation has a line"
    assert lines[-1] == (
        "step  12/160  reward 0.71  held-out 0.62  3.14k tok/s  staleness 1.2 (max 2)  |dlogp| 3e-06  left 2:28"
    )
    assert len(lines) == 14


SEVERAL = {
    "eval/score": 0.62,
    "eval/due_step": 8.0,
    "eval/version_min": 9.0,
    "eval/version_max": 11.0,
    "eval/rows": 50.0,
    "eval/failed": 2.0,
}


def test_failures_behind_an_intermediate_score_are_shown() -> None:
    out = io.StringIO()
    progress = ProgressDisplay(160, stream=out, max_failed_share=0.1)
    progress.evaluation(5, {"eval/score": 0.5, "eval/version_min": 5.0, "eval/version_max": 5.0})
    progress.evaluation(9, SEVERAL)
    failed = {
        "eval/due_step": 15.0,
        "eval/score": math.nan,
        "eval/failed": 30.0,
        "eval/error_rows": 29.0,
        "eval/error": "ValueError: it is down",
    }
    progress.evaluation(15, SEVERAL | failed)
    progress.step(16, VALUES)
    plain, several, missing, step = out.getvalue().splitlines()
    assert plain == "held-out 0.500 at step 5"
    assert several == "held-out 0.620 at step 8 (weights of steps 9 to 11; 2 of 50 rows failed)"
    assert missing == (
        "held-out: no score at step 15: 30 of 50 rows failed (60%, evaluator.max_failed_share allows 10%); "
        "most frequent error (29 of 30): ValueError: it is down; see logs/episodes-*.log"
    )
    assert "  held-out none  " in step


def test_the_panel_shows_failures_behind_the_last_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out, clock = Terminal(), Clock()
    progress = ProgressDisplay(10, 2, stream=out, live=True, clock=clock)
    progress.evaluation(9, SEVERAL)
    clock.now += 1.0
    progress.step(10, VALUES)
    assert out.shown()[1] == ("reward 0.71   held-out 0.62 (weights of steps 9 to 11; 2 of 50 rows failed)")


def test_without_rewards_the_loss_is_shown() -> None:
    out = io.StringIO()
    progress = ProgressDisplay(2, stream=out)
    progress.step(1, {"train/loss": 1.234, "train/lr": 2e-3, "perf/tokens_per_s": 51000.0})
    progress.evaluation(2, {"eval/loss": 1.1})
    assert out.getvalue().splitlines() == [
        "step 1/2  loss 1.23  51k tok/s  lr 0.002",
        "held-out loss 1.100 at step 2",
    ]


def test_fast_steps_do_not_flood_the_screen_and_the_last_is_always_shown() -> None:
    out, clock = io.StringIO(), Clock()
    progress = ProgressDisplay(1000, stream=out, clock=clock)
    for step in range(1, 1001):
        clock.now += 0.01
        progress.step(step, VALUES)
    lines = out.getvalue().splitlines()
    assert 15 <= len(lines) <= 22
    assert lines[-1].startswith("step 1000/1000")


def test_the_remaining_time_follows_the_last_steps_and_runs_down() -> None:
    history = History(100)
    assert history.left_s(0.0) is None
    now = 0.0
    for step in range(1, 51):
        now += 10.0 if step < 25 else 2.0
        history.add_step(step, VALUES, now)
    assert history.left_s(now) == pytest.approx(100.0)
    assert history.left_s(now + 30) == pytest.approx(70.0)
    assert history.left_s(now + 1000) == 0.0


def test_a_recovery_removes_values_after_the_checkpoint() -> None:
    history = History(10)
    for step in range(1, 7):
        history.add_step(step, {"reward/mean": step / 10}, float(step))
        history.add_evaluation(step, {"eval/score": step / 10}, float(step))
    history.add_step(4, {"reward/mean": 0.9}, 100.0)
    assert history.rewards == [0.1, 0.2, 0.3, 0.9]
    assert history.evaluations("eval/score") == [0.1, 0.2, 0.3]
    assert history.seconds_per_step is None


def test_on_a_terminal_the_view_is_redrawn_below_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out, clock = Terminal(), Clock()
    progress = ProgressDisplay(10, 2, stream=out, live=True, clock=clock)
    progress.say("adding/r0001 in runs/adding/r0001")
    progress.phase("servers ready", 5.1)
    for step in range(1, 4):
        clock.now += 1.0
        progress.step(step, VALUES)
    progress.evaluation(0, {"eval/score": 0.5})
    progress.say("a remark")
    clock.now += 60.0
    progress.tick()
    shown = out.shown()
    assert shown[:3] == ["adding/r0001 in runs/adding/r0001", "  servers ready 5.1 s", "a remark"]
    assert len(shown) == 6
    assert shown[3].startswith("step  3/10   ━━━━━━━─")
    assert "30%" in shown[3] and "left 0:00" in shown[3] and "(last step 1:00 ago)" in shown[3]
    assert shown[4].startswith("reward 0.71 ▁▁▁   held-out 0.50")
    progress.close()
    progress.say("the end")
    assert out.shown()[3:] == [*shown[3:], "the end"]


def test_lines_are_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    progress = ProgressDisplay(10, stream=out, live=True)
    progress.step(1, VALUES | {"train/lr": 1.0})
    assert max(len(line) for line in out.shown()) == 39


def test_a_closed_output_does_not_stop_the_run() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        progress = ProgressDisplay(10, stream=out)
        progress.step(1, VALUES)
        progress.say("still there")


def test_the_view_is_redrawn_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    assert not is_live(terminal)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    assert is_live(terminal)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_live(terminal)


# --- health


def test_a_healthy_run_gives_no_diagnosis() -> None:
    health = RunDiagnosis(config())
    fresh = VALUES | {"offpolicy/staleness_max": 0.0, "offpolicy/logprob_diff_max": 2e-5, "offpolicy/kl": 1e-9}
    stale = fresh | {"offpolicy/staleness_max": 2.0, "offpolicy/logprob_diff_mean": 0.02, "offpolicy/kl": 0.002}
    assert [health.check(step, values) for step, values in enumerate((fresh, stale), start=1)] == [[], []]


@pytest.mark.parametrize(
    ("changes", "staleness", "cause"),
    [
        (
            {"actor__temperature": 1.0},
            0,
            "different temperatures: gconfig.temperature=0.5 in sampling, actor.temperature=1 in training",
        ),
        ({"embedded__dtype": "bfloat16"}, 0, "different dtypes: bfloat16 in serving, float32 in training"),
        ({}, 0, "a server without the new weights"),
        (
            {"rollout__max_head_offpolicyness": 4},
            3,
            "weights up to 4 updates old: lower actor.lr or rollout.max_head_offpolicyness",
        ),
    ],
)
def test_when_sampler_and_trainer_disagree_the_probable_cause_is_named(
    changes: dict[str, Any], staleness: float, cause: str
) -> None:
    values = {"offpolicy/logprob_diff_mean": 0.6, "offpolicy/kl": 0.2, "offpolicy/staleness_max": staleness}
    health = RunDiagnosis(config(**changes))
    (line,) = [line for step in range(7, 17) for line in health.check(step, values)]
    step = 16 if staleness else 7
    assert line.startswith(f"step {step}: sampler and trainer disagree (|dlogp| mean 0.6") and cause in line


def test_large_first_updates_of_a_short_run_give_no_warning() -> None:
    """As in the shipped experiment cut to 25 steps, where hardly anything is left of its warmup."""
    course = [(0.0, 0.0), (0.0, 0.0), (0.81, 1.46), (1.6, 1.35), (0.42, 0.26), (0.34, 0.21), (0.58, 0.47), (0.2, 0.13)]
    health = RunDiagnosis(config())
    for step, (difference, kl) in enumerate(course, start=1):
        values = {"offpolicy/logprob_diff_mean": difference, "offpolicy/kl": kl}
        assert health.check(step, values | {"offpolicy/staleness_max": float(min(2, step // 2))}) == []


def test_half_precision_has_a_larger_tolerance() -> None:
    values = {"offpolicy/logprob_diff_mean": 0.01, "offpolicy/logprob_diff_max": 0.5, "offpolicy/staleness_max": 0.0}
    assert RunDiagnosis(config(actor__dtype="bfloat16", embedded__dtype="bfloat16")).check(1, values) == []
    assert RunDiagnosis(config()).check(1, values)
    rare = values | {"offpolicy/logprob_diff_max": 4.0}
    assert RunDiagnosis(config(embedded__dtype="bfloat16")).check(1, rare) == [], "the coarser of the two counts"


def test_an_allowed_mismatch_gives_a_warning_only_if_large() -> None:
    values = {"offpolicy/logprob_diff_mean": 0.3, "offpolicy/logprob_diff_max": 5.0, "offpolicy/staleness_max": 0.0}
    mismatched = config(rollout__allow_mismatched_sampling=True)
    assert RunDiagnosis(mismatched).check(1, values) == []
    (line,) = RunDiagnosis(mismatched).check(2, values | {"offpolicy/logprob_diff_mean": 0.6})
    assert "rollout.allow_mismatched_sampling=true" in line


def test_answers_of_fixed_length_give_no_truncation_warning() -> None:
    truncated = {"rollout/truncated_share": 1.0}
    usual, fixed = RunDiagnosis(config()), RunDiagnosis(config(gconfig__min_new_tokens=config().gconfig.max_new_tokens))
    assert [len(usual.check(step, truncated)) for step in range(1, 6)] == [0, 0, 0, 0, 1]
    assert [line for step in range(1, 60) for line in fixed.check(step, truncated)] == []


def test_groups_without_spread_give_no_warning_without_group_baseline() -> None:
    equal = {"rollout/groups": 8.0, "reward/groups_without_spread": 8.0, "train/samples": 64.0}
    some, none = ({**equal, "train/sequences_without_signal": count} for count in (10.0, 64.0))
    batch = config(actor__reward_norm=None)
    assert [line for step in range(1, 60) for line in RunDiagnosis(batch).check(step, some)] == []
    health = RunDiagnosis(batch)
    assert [step for step in range(1, 10) if health.check(step, none)] == [5]


def test_negative_rewards_are_reported_where_advantages_are_divided_by_their_mean() -> None:
    def lines(lowest: float, **changes: Any) -> list[str]:
        health = RunDiagnosis(config(actor__advantage=maxrl, **changes))
        return health.check(1, {"reward/min": lowest, "reward/max": 1.0})

    cls: Any = AdvantageConfig
    maxrl = cls(mean_norm=True)
    (line,) = lines(-1.0)
    assert line.startswith("step 1: rewards are as low as -1, and actor.advantage.mean_norm (MaxRL) divides by the")
    assert lines(0.0) == lines(-1.0, actor__reward_bias=1.0) == []
    assert RunDiagnosis(config()).check(1, {"reward/min": -1.0, "reward/max": 1.0}) == []
    assert "as low as -4" in lines(-1.0, actor__reward_bias=1.0, actor__reward_scaling=-2.0)[0]


def test_a_lasting_symptom_is_reported_once() -> None:
    health = RunDiagnosis(config(actor__reward_norm=group_baseline()))
    equal = {"rollout/groups": 8.0, "reward/groups_without_spread": 8.0}
    reported = [step for step in range(1, 121) if health.check(step, equal)]
    assert reported == [5, 55, 105]
    assert health.check(121, equal | {"reward/groups_without_spread": 7.0}) == []
    assert [step for step in range(122, 130) if health.check(step, equal)] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train/skipped_updates": 1.0}, "not finite"),
        ({"rollout/failed": 2.0}, "2 groups left out since the previous step because every attempt failed"),
        ({"rollout/failed": 1.0}, "1 group left out"),
        (
            {"reward/answers_without_reward": 3.0, "rollout/answers": 64.0},
            "3 of 64 answers are left out of training because every attempt at their reward failed; see logs/epi",
        ),
        (
            {"rollout/failed": 13.0, "rollout/error_groups": 9.0, "rollout/error": "ValueError: no"},
            "every attempt failed; most frequent error (9 of 13): ValueError: no; see logs/episodes-*.log",
        ),
    ],
)
def test_a_single_failure_is_reported_at_once(values: dict[str, Any], words: str) -> None:
    (line,) = RunDiagnosis(config()).check(1, values)
    assert words in line


def test_the_live_view_shows_the_diagnosis() -> None:
    out = io.StringIO()
    ProgressDisplay(10, diagnosis=RunDiagnosis(config()), stream=out).step(3, VALUES | {"rollout/failed": 1.0})
    assert out.getvalue().splitlines()[1].startswith("step 3: 1 group left out")
