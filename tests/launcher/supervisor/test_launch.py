"""A stop before anything is started; the first lines of a further start: where it begins, which steps are done."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.process.exit_codes import FAILED
from areal_like.process.run import StartPoint
from areal_like.process.stop_signals import STOP_SIGNALS, handled
from launcher.commands import run
from launcher.supervisor.launch import _Launch, continue_lines
from tests.support.planning import loaded


def lines(step: int, total: int | None, resumes: bool = False) -> list[str]:
    return continue_lines(StartPoint(2, step, Path(f"step_{step:06d}")), total, resumes)


def test_a_further_start_counts_the_steps_that_are_done_and_that_follow() -> None:
    assert lines(10, 30) == ["resuming from step 10 (attempt 2): 10 of 30 steps are done, 20 to go"]
    assert lines(1, 2) == ["resuming from step 1 (attempt 2): 1 of 2 steps is done, 1 to go"]
    assert lines(10, None) == ["resuming from step 10 (attempt 2)"]
    assert continue_lines(StartPoint(2, 0, None), 30, False) == ["starting from the beginning (attempt 2)"]


def test_a_further_start_of_a_complete_run_names_the_keys_to_train_more() -> None:
    done, advice = lines(10, 10)
    assert done == "resuming from step 10 (attempt 2)"
    assert advice == "all 10 steps are done; total_train_steps=20 trains 10 more, --replace starts over"
    assert lines(10, 10, resumes=True)[1] == "all 10 steps are done; total_train_steps=20 trains 10 more"


def test_a_start_that_was_taken_over_leaves_the_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was stalled once it had written its start point."""
    (tmp_path / "metrics").mkdir()
    metrics = tmp_path / "metrics" / "trainer-0.jsonl"
    metrics.write_text('{"step": 3, "attempt": 3, "time": 0.0}\n')
    (tmp_path / "attempt.json").write_text(json.dumps(StartPoint(3, 2, None, owner="another")._asdict()))
    released: list[bool] = []
    launch: Any = object.__new__(_Launch)
    launch.start, launch.run_ = StartPoint(2, 2, None, owner="own"), SimpleNamespace(directory=tmp_path, run_id="own")
    launch.progress = SimpleNamespace(close=lambda: None)
    launch.begun = SimpleNamespace(clean=str)
    launch.locked = SimpleNamespace(release=lambda clears: released.append(clears))
    launch._announce = lambda: None
    assert (launch.run(), released) == (FAILED, [False])
    assert "another launcher has begun attempt 3 of this run; attempt 2 writes nothing more" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*.jsonl")] == [metrics] and '"step": 3' in metrics.read_text()


@pytest.mark.parametrize("step", ["build_plan", "fetch_from_hub"])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_while_a_start_plans_or_fetches_ends_it_with_75(
    number: signal.Signals, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_stopped(*_: Any, **__: Any) -> None:
        signal.raise_signal(number)
        raise AssertionError("the start goes on")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "refuse", list)
    monkeypatch.setattr(run, step, is_stopped)
    kept: list[int] = []
    with handled(STOP_SIGNALS, lambda number, _frame: kept.append(number)):
        before = signal.getsignal(number)
        with pytest.raises(SystemExit) as ended:
            run.start(loaded("grpo"))
        assert (ended.value.code, kept, signal.getsignal(number)) == (75, [], before)
