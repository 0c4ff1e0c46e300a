"""The observer joins lines of several processes into one per step, across restarts and recoveries."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.experiment import GRPOConfig, SFTConfig
from areal_like.observe.evaluations import why_no_score
from areal_like.observe.joiner import MAX_WAITING, MetricJoiner, rewind_metrics
from areal_like.observe.milestones import Milestones
from areal_like.observe.observer import Observer
from areal_like.observe.reading import read_metrics
from areal_like.observe.summary import read_run_record
from areal_like.observe.tracker_samples import Extras, ExtrasWriter
from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.fan_out import Trackers
from areal_like.observe.writer import MetricWriter
from areal_like.process.errors import Failure
from areal_like.process.identity import Identity
from areal_like.process.run import Run, StartPoint


def make_run(folder: Path, cls: type = GRPOConfig) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    kind = "grpo" if cls is GRPOConfig else "sft"
    return Run(folder, cls(experiment_name="adding", trial_name="r0001"), kind, "abc", folder, folder)


class RecordingTracker(Tracker):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log(self, step: int, values: Any) -> None:
        self.calls.append((step, sorted(values)))

    def log_extras(self, extras: Extras) -> None:
        self.calls.append((extras.purpose, extras.step))

    def show(self, extras: Extras) -> None:
        raise NotImplementedError

    def rewind(self, step: int) -> None:
        self.calls.append(("rewind", step))

    def close(self) -> None:
        self.calls.append("closed")


class ObservedRun:
    """A run with its writers, and an observer that reads on request."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, cls: type = GRPOConfig) -> None:
        self.run = make_run(folder / "run", cls)
        self.received: list[Any] = []
        self.warnings: list[str] = []
        self.trackers: list[RecordingTracker] = []
        monkeypatch.setattr(Trackers, "of", self._opened)
        self.observer = self.begin()

    def _opened(self, run: Run, say: Callable[[str], None]) -> RecordingTracker:
        self.trackers.append(RecordingTracker())
        return self.trackers[-1]

    def begin(self) -> Observer:
        """As after a restart of the launcher."""
        self.observer = Observer(
            self.run,
            on_step=lambda step, values: self.received.append(("step", step, values)),
            on_eval=lambda step, values: self.received.append(("eval", step, values)),
            warn=self.warnings.append,
            clean=lambda text: text.replace("s3cret", "***"),
        )
        self.observer._remember()
        return self.observer

    def write(self, role: str, step: int, attempt: int = 1, **values: float) -> None:
        named = {name.replace("__", "/"): value for name, value in values.items()}
        MetricWriter(self.run, Identity(role, 0, attempt)).write(step, named)

    def step(self, step: int, attempt: int = 1, loss: float = 1.0) -> None:
        self.write("rollout", step, attempt, reward__mean=0.5)
        self.write("trainer", step, attempt, train__loss=loss)

    def poll(self) -> list[dict[str, Any]]:
        self.observer._poll()
        return self.lines()

    def lines(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        path = self.run.directory / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObservedRun:
    return ObservedRun(tmp_path, monkeypatch)


def test_a_step_is_one_line_once_trainer_and_controller_have_reported(observed: ObservedRun) -> None:
    observed.write("rollout", 1, reward__mean=0.5)
    assert observed.poll() == []
    observed.write("trainer", 1, train__loss=1.5)
    (line,) = observed.poll()
    assert (line["step"], line["attempt"], line["reward/mean"], line["train/loss"]) == (1, 1, 0.5, 1.5)
    assert observed.poll() == [line]
    assert observed.received == [("step", 1, {"reward/mean": 0.5, "train/loss": 1.5})]
    assert observed.trackers[0].calls == [(1, ["reward/mean", "train/loss"])]


def test_without_a_controller_the_trainer_alone_makes_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = ObservedRun(tmp_path, monkeypatch, SFTConfig)
    observed.write("trainer", 1, train__loss=1.5, eval__loss=2.0)
    assert [sorted(line) for line in observed.poll()] == [
        ["attempt", "step", "time", "train/loss"],
        ["attempt", "eval/loss", "step", "time"],
    ]


def test_an_evaluation_is_a_separate_line_at_any_time(observed: ObservedRun) -> None:
    observed.write("rollout", 0, eval__score=0.4)
    assert [line["eval/score"] for line in observed.poll()] == [0.4]
    observed.step(1)
    observed.step(2)
    observed.poll()
    observed.write("rollout", 1, eval__score=0.6)
    assert [line["step"] for line in observed.poll()] == [0, 1, 2, 1]
    assert [(kind, step) for kind, step, _ in observed.received] == [("eval", 0), ("step", 1), ("step", 2), ("eval", 1)]
    assert read_metrics(observed.run.directory)[1]["eval/score"] == 0.6


def test_two_evaluations_that_one_version_answered_are_both_kept(observed: ObservedRun) -> None:
    """The second may begin before a new version: neither replaces the other, even when read again."""
    observed.write("rollout", 1, eval__due_step=0, eval__score=0.4, eval__samples=10)
    observed.write("rollout", 1, eval__due_step=1, eval__score=0.6, eval__samples=90)
    assert [line["eval/score"] for line in observed.poll()] == [0.4, 0.6]
    observed.begin()
    assert [line["eval/score"] for line in observed.poll()] == [0.4, 0.6]
    observed.write("rollout", 1, attempt=2, eval__due_step=1, eval__score=0.7, eval__samples=90)
    assert [line["eval/score"] for line in observed.poll()] == [0.4, 0.6, 0.7]
    assert [line["eval/score"] for line in read_run_record(observed.run.directory).evaluations] == [0.4, 0.7]


def test_the_error_of_an_evaluation_is_joined_without_secrets(observed: ObservedRun) -> None:
    writer = MetricWriter(observed.run, Identity("rollout", 0, 1))
    writer.write(1, {"eval/due_step": 0, "eval/score": 0.4}, "ValueError: key s3cret")
    (line,) = observed.poll()
    assert line["eval/error"] == "ValueError: key ***"
    assert observed.received == [
        ("eval", 1, {"eval/due_step": 0, "eval/score": 0.4, "eval/error": "ValueError: key ***"})
    ]
    assert observed.trackers[0].calls == [(1, ["eval/due_step", "eval/score"])], "a text is no metric"


def test_the_error_of_a_steps_groups_is_joined_without_secrets(observed: ObservedRun) -> None:
    observed.step(1)
    values = {"rollout/failed": 2.0, "rollout/error_groups": 2.0}
    rollout = MetricWriter(observed.run, Identity("rollout", 0, 1))
    rollout.write(2, values, "ValueError:\nkey s3cret " + "y" * 300, "rollout/error")
    MetricWriter(observed.run, Identity("trainer", 0, 1)).write(2, {"train/loss": 1.0})
    line = observed.poll()[-1]
    error = line["rollout/error"]
    assert error.startswith("ValueError: key *** yyy") and len(error) <= 200
    assert observed.received[-1] == ("step", 2, {**values, "train/loss": 1.0, "rollout/error": error})
    assert "rollout/error" not in observed.trackers[0].calls[-1][1], "a text is no metric"
    assert all(isinstance(value, int | float) for value in read_metrics(observed.run.directory)[-1].values())


def test_the_error_of_an_evaluation_is_cut_after_its_secrets_are_removed(observed: ObservedRun) -> None:
    writer = MetricWriter(observed.run, Identity("rollout", 0, 1))
    writer.write(1, {"eval/due_step": 0, "eval/score": 0.4}, "often\n" + "x" * 71 + "s3cret" + "y" * 300)
    (line,) = observed.poll()
    error = line["eval/error"]
    assert error.startswith("often xxx") and error.endswith("xx*** ... " + "y" * 115) and len(error) <= 200
    assert "s3" not in (observed.run.directory / "metrics.jsonl").read_text()


@pytest.mark.parametrize("error", [5, None, ["a"], ""])
def test_an_error_that_is_no_text_is_left_out(observed: ObservedRun, error: object) -> None:
    line = {"step": 1, "attempt": 1, "time": 1.0, "eval/due_step": 0, "eval/score": 0.4, "eval/error": error}
    file = observed.run.metrics / "rollout-0.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(line) + "\n")
    (joined,) = observed.poll()
    assert joined["eval/score"] == 0.4 and "eval/error" not in joined and observed.observer.failure is None
    assert why_no_score(line | {"eval/rows": 2, "eval/failed": 2}).startswith("2 of 2 rows failed")


def test_the_error_of_an_evaluation_cannot_move_the_cursor(observed: ObservedRun) -> None:
    writer = MetricWriter(observed.run, Identity("rollout", 0, 1))
    writer.write(1, {"eval/due_step": 0, "eval/score": 0.4}, "a\x1b[2J\x07\x9b1\x7f\x00 b\u202ec")
    (line,) = observed.poll()
    assert line["eval/error"] == r"a\x1b[2J\x07\x9b1\x7f\x00 b\u202ec"
    earlier = {"eval/rows": 2, "eval/failed": 2, "eval/error": "\x1b[2J"}
    assert r"error: \x1b[2J;" in why_no_score(earlier), "metrics.jsonl may be of another version"


def test_values_that_arrive_after_the_line_of_their_step_are_kept(observed: ObservedRun) -> None:
    observed.step(1)
    observed.poll()
    observed.write("trainer", 1, perf__checkpoint_s=0.3)
    observed.poll()
    (merged,) = read_metrics(observed.run.directory)
    assert merged["perf/checkpoint_s"] == 0.3 and merged["train/loss"] == 1.0
    assert len(observed.received) == 1


def test_a_step_that_one_process_skipped_does_not_wait_for_ever(observed: ObservedRun) -> None:
    observed.write("trainer", 1, train__loss=1.0)
    observed.step(2)
    assert [line["step"] for line in observed.poll()] == [1, 2]


def test_steps_of_which_a_process_never_reports_are_written_without_it_and_do_not_pile_up() -> None:
    joiner = MetricJoiner({"trainer-0", "rollout-0"})
    written = [
        line.line["step"]
        for step in range(1, 1001)
        for line in joiner.add("trainer-0", {"step": step, "attempt": 1, "time": 0.0, "train/loss": 1.0})
    ]
    assert written == list(range(1, 1001 - MAX_WAITING))
    assert [line.line["step"] for line in joiner.flush()] == list(range(1001 - MAX_WAITING, 1001))


def test_half_a_step_is_written_at_the_end(observed: ObservedRun) -> None:
    observed.step(1)
    observed.write("rollout", 2, reward__mean=0.7)
    observed.observer.drain()
    assert [line["step"] for line in observed.lines()] == [1, 2]
    assert observed.trackers[0].calls[-1] == "closed"


def test_a_restarted_observer_continues_after_the_existing_lines(observed: ObservedRun) -> None:
    observed.step(1)
    observed.write("rollout", 1, eval__score=0.5)
    observed.write("rollout", 2, reward__mean=0.5)
    observed.poll()
    with (observed.run.directory / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":2,"rew')
    observed.begin()
    observed.write("trainer", 2, train__loss=2.0)
    observed.step(3)
    lines = observed.poll()
    assert [(line["step"], "eval/score" in line) for line in lines] == [(1, False), (1, True), (2, False), (3, False)]
    assert [step for _, step, _ in observed.received] == [1, 1, 2, 3]
    assert observed.trackers[1].calls[0] == ("rewind", 1)


def test_a_recovery_removes_later_lines_and_steps_are_written_again(observed: ObservedRun) -> None:
    for step in (1, 2, 3):
        observed.step(step, loss=1.0)
    observed.write("rollout", 2, eval__score=0.5)
    observed.write("rollout", 4, reward__mean=0.9)
    observed.poll()
    observed.observer.rewind(step=2, attempt=1)
    assert [line["step"] for line in observed.lines()] == [1, 2, 2]
    assert [line["step"] for line in observed.lines("metrics.attempt-1.jsonl")] == [3]
    assert [line["step"] for line in observed.lines("metrics/attempt-1/rollout-0.jsonl")] == [3, 4]
    for step in (3, 4):
        observed.step(step, attempt=2, loss=0.5)
    assert [(line["step"], line["attempt"]) for line in observed.poll()] == [(1, 1), (2, 1), (2, 1), (3, 2), (4, 2)]
    assert observed.lines()[-1]["reward/mean"] == 0.5, (
        "the controller's earlier word on step 4 is of a life that is over"
    )
    calls = observed.trackers[0].calls
    assert [step for step, _ in calls[:4]] == [1, 2, 2, 3] and calls[4] == ("rewind", 2)
    assert [step for step, _ in calls[5:]] == [3, 4]


def test_a_recovery_of_a_run_that_was_taken_over_leaves_its_metrics(observed: ObservedRun) -> None:
    """The launcher was stalled between the start point of its attempt and this."""
    for step in (1, 2, 3):
        observed.step(step)
    observed.poll()
    before = {path: path.read_bytes() for path in observed.run.directory.rglob("*.jsonl")}
    start = StartPoint(3, 2, None, owner="that of another launcher")
    (observed.run.directory / "attempt.json").write_text(json.dumps(start._asdict()))
    with pytest.raises(Failure, match="another launcher has begun attempt 3 of this run; attempt 2 writes nothing"):
        observed.observer.rewind(step=2, attempt=1)
    assert {path: path.read_bytes() for path in observed.run.directory.rglob("*.jsonl")} == before


def test_a_run_that_is_taken_over_while_its_observer_ends_gets_no_more_lines(observed: ObservedRun) -> None:
    observed.step(1)
    observed.poll()
    observed.write("trainer", 2, train__loss=2.0)  # the last look would join it without the rest of its step
    before = observed.lines()
    start = StartPoint(3, 2, None, owner="that of another launcher")
    (observed.run.directory / "attempt.json").write_text(json.dumps(start._asdict()))
    observed.observer.start()
    observed.observer.drain()
    assert observed.lines() == before
    assert "another launcher has begun attempt 3" in (observed.observer.taken_over() or "")


def test_a_line_of_a_later_attempt_replaces_the_earlier_one() -> None:
    join = MetricJoiner({"trainer-0", "rollout-0"})
    assert join.add("trainer-0", {"step": 1, "attempt": 1, "train/loss": 1.0}) == []
    assert join.add("rollout-0", {"step": 1, "attempt": 2, "reward/mean": 0.5}) == []
    assert join.add("trainer-0", {"step": 1, "attempt": 1, "train/loss": 1.0}) == []
    (joined,) = join.add("trainer-0", {"step": 1, "attempt": 2, "train/loss": 2.0})
    assert joined.line == {"step": 1, "attempt": 2, "time": 0.0, "train/loss": 2.0, "reward/mean": 0.5}
    assert join.add("trainer-0", {"step": 1, "attempt": 1, "train/grad_norm": 1.0}) == []
    assert join.add("trainer-0", {"step": 1, "attempt": 2, "train/loss": 2.0}) == []


def test_a_cut_that_was_interrupted_is_completed_by_a_second_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = "".join(json.dumps({"step": step, "train/loss": 1.0}) + "\n" for step in (1, 2, 3)) + '{"step":4,'
    path.write_text(whole)
    assert rewind_metrics(tmp_path, 1, 1) == 2
    path.write_text(whole)
    assert rewind_metrics(tmp_path, 1, 1) == 2
    assert path.read_text() == '{"step":1,"train/loss":1.0}\n'
    assert len((tmp_path / "metrics.attempt-1.jsonl").read_text().splitlines()) == 2
    assert rewind_metrics(tmp_path, 1, 1) == 0
    assert not [found for found in tmp_path.iterdir() if found.name.startswith(".")]


def test_an_observer_that_cannot_write_reports_it_and_the_run_continues(observed: ObservedRun) -> None:
    (observed.run.directory / "metrics.jsonl").mkdir()
    observed.step(1)
    observed.observer._try(observed.observer._poll)
    assert isinstance(observed.observer.failure, IsADirectoryError)
    assert len(observed.warnings) == 1 and "metrics are no longer joined" in observed.warnings[0]
    observed.observer.drain()
    assert len(observed.warnings) == 1


def test_the_thread_follows_while_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = threading.Event()
    observed = ObservedRun(tmp_path, monkeypatch)
    observer = Observer(observed.run, on_step=lambda step, values: arrived.set() if step == 2 else None, poll_s=0.01)
    observer.start()
    observed.step(1)
    observed.step(2)
    assert arrived.wait(120)
    observed.step(3)
    observer.drain()
    assert [line["step"] for line in observed.lines()] == [1, 2, 3]
    assert observer.failure is None


def test_events_before_the_first_step_are_shown_once(tmp_path: Path) -> None:
    calls: list[tuple[str, float]] = []
    ledger = tmp_path / "ledger.jsonl"
    earlier = json.dumps({"event": "submitted", "attempt": 1, "time": 1.0}) + "\n"
    ledger.write_text(earlier + '{"event":"half of a li')
    totals: list[int] = []
    milestones = Milestones(ledger, lambda what, when: calls.append((what, when)), totals.append)
    ledger.write_text(earlier)  # as a controller leaves it that begins
    milestones.poll()
    events = [
        {"event": "begun", "attempt": 2, "time": 1.5, "steps": 40},
        {"event": "submitted", "attempt": 2, "time": 2.0},
        {"event": "submitted", "attempt": 2, "time": 3.0},
    ]
    with ledger.open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events) + '{"event":"batc')
    milestones.poll()
    with ledger.open("a") as file:
        file.write('hed","attempt":2,"time":4.0}\n{"event":"batched","attempt":2,"time":5.0}\n')
    milestones.poll()
    assert calls == [("weights are served", 2.0), ("first batch", 4.0)]
    assert totals == [40]


def test_samples_are_passed_on_once_over_recoveries_and_resumes(observed: ObservedRun) -> None:
    def write(step: int, attempt: int) -> None:
        ExtrasWriter(observed.run, Identity("trainer", 0, attempt)).write(Extras(step, "train", [{"a": 1}], {}))

    write(1, 1)
    write(2, 1)
    observed.observer._poll()
    observed.observer.rewind(1, 1)
    write(2, 2)
    observed.observer._poll()
    assert observed.trackers[0].calls == [("train", 1), ("train", 2), ("rewind", 1), ("train", 2)]
    observed.begin()
    write(3, 3)
    observed.observer._poll()
    assert observed.trackers[1].calls == [("train", 3)]
