"""The summary at the end of a run: files, text and next steps."""

import json
import math
import time
from functools import cache, partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.load import load
from areal_like.config.sources.library import data_folder
from areal_like.observe.charts import Series, step_axis, svg_chart, terminal_chart, value_axis
from areal_like.observe.evaluations import evaluation_lines, evaluation_text
from areal_like.observe.next_steps import short_number
from areal_like.observe.summary import RunRecord, summarize_run

COMMAND = "python -m launcher --config grpo.yaml actor.lr=3e-4 trial_name=r0001 'task.args={digits: 2}'\n"


@cache
def configuration(experiment: str, *overrides: str) -> str:
    return to_yaml(load(data_folder("experiments") / f"{experiment}.yaml", ["trial_name=r0001", *overrides]).values)


class Ended:
    """The directory of a run that has ended, with what a launcher wrote into it."""

    def __init__(self, folder: Path, experiment: str = "grpo", *overrides: str) -> None:
        self.folder = folder / "runs/adding/r0001"
        self.folder.mkdir(parents=True)
        (self.folder / "command.txt").write_text(COMMAND.replace("grpo", experiment))
        (self.folder / "config.yaml").write_text(configuration(experiment, *overrides))
        facts = {"run_id": "x", "experiment": experiment, "folder": str(folder), "cwd": str(folder)}
        (self.folder / "run.json").write_text(json.dumps(facts))

    def metrics(self, *lines: dict[str, Any]) -> None:
        (self.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def learnt(self, steps: int = 40) -> None:
        lines: list[dict[str, Any]] = [{"step": 0, "eval/score": 0.45}]
        for step in range(1, steps + 1):
            lines.append({"step": step, "train/loss": 0.1, "reward/mean": 0.5 + 0.4 * step / steps})
            if step % 10 == 0:
                lines.append({"step": step, "eval/score": 0.45 + 0.5 * step / steps})
        self.metrics(*lines)

    def checkpoint(self, step: int, complete: bool = True) -> Path:
        folder = self.folder / f"checkpoints/step_{step:06}"
        folder.mkdir(parents=True)
        if complete:
            (folder / ".complete").touch()
        return folder

    def finish(self, outcome: str = "done", code: int = 0, error: str | None = None) -> tuple[dict[str, Any], str]:
        text = summarize_run(self.folder, outcome, code, time.time() - 102, attempts=1, error=error)
        return json.loads((self.folder / "summary.json").read_text()), text


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    return partial(Ended, tmp_path)


def test_a_successful_run_prints_its_score_model_and_next_steps(ended: Any) -> None:
    run = ended()
    run.learnt()
    run.checkpoint(20)
    model = run.checkpoint(40)
    run.checkpoint(41, complete=False)
    summary, text = run.finish()
    assert (summary["outcome"], summary["exit_code"], summary["steps"], summary["attempts"]) == ("done", 0, 40, 1)
    assert summary["seconds"] == pytest.approx(102, abs=2)
    assert (summary["model"], summary["score"], summary["objective"]) == (str(model), 0.95, 0.95)
    assert summary["curve"] == [[0, 0.45], [10, 0.575], [20, 0.7], [30, 0.825], [40, 0.95]]
    assert len(summary["rewards"]) == 40 and summary["last"]["reward/mean"] == 0.9
    assert "done: 40 steps in 1:42\nheld-out score 0.45 -> 0.95; reward 0.53 -> 0.88\n" in text
    assert "model    runs/adding/r0001/checkpoints/step_000040" in text
    assert "chat     python -m launcher chat runs/adding/r0001" in text
    same = "python -m launcher --config grpo.yaml"
    task = "'task.args={digits: 2}'"
    assert f"next     {same} {task} actor.lr=1e-4 " in text
    assert f"{same} actor.lr=3e-4 {task} --multirun seed=1,2,3 " in text
    assert f"{same} actor.lr=3e-4 {task} max_head_offpolicyness=0 " in text
    assert "●" in text and max(len(line) for line in text.splitlines() if "│" in line) <= 80


def test_a_failed_run_prints_the_reason_and_how_to_resume(ended: Any) -> None:
    run = ended()
    run.learnt(12)
    checkpoint = run.checkpoint(10)
    assert "resume   " not in run.finish("failed", 1)[1], "it has weights alone"
    (checkpoint / "resume").mkdir()
    summary, text = run.finish("failed", 1, "trainer/0 ended with exit code 1")
    assert (summary["error"], summary["steps"]) == ("trainer/0 ended with exit code 1", 12)
    assert "failed: 12 steps in 1:42\ntrainer/0 ended with exit code 1\n" in text
    assert "logs     runs/adding/r0001/logs" in text
    assert "resume   python -m launcher resume=runs/adding/r0001" in text
    assert "--multirun" not in text


def test_suggestions_after_a_resume_start_with_the_first_command(ended: Any) -> None:
    run = ended()
    run.learnt()
    (run.folder / "command.txt").rename(run.folder / "command.until-attempt-1.txt")
    own = run.folder.relative_to(Path.cwd()) / "config.yaml"
    (run.folder / "command.txt").write_text(f"python -m launcher --config {own} resume=r0001\n")
    _, text = run.finish()
    assert "python -m launcher --config grpo.yaml 'task.args={digits: 2}' actor.lr=1e-4" in text
    assert str(own) not in text


def test_suggested_changes_keep_overrides_of_resumed_attempts(ended: Any) -> None:
    run = ended("sft", "total_train_steps=4")
    run.metrics(*({"step": step, "train/loss": 3.0 / step} for step in range(1, 5)))
    own = run.folder / "config.yaml"
    first = "python -m launcher --config=sft.yaml total_steps=2 seed=5 trial_name=r0001\n"
    (run.folder / "command.until-attempt-1.txt").write_text(first)
    later = "python -m launcher --config {} total_train_steps={} resume=r0001 log.level=debug\n"
    (run.folder / "command.until-attempt-2.txt").write_text(later.format(own, 3))
    (run.folder / "command.txt").write_text(later.format(own, 4))
    text = run.finish()[1]
    same = "python -m launcher --config=sft.yaml"
    assert f"next     {same} seed=5 total_train_steps=4 log.level=debug model.lr=7e-4 " in text
    assert f"{same} seed=5 log.level=debug total_steps=8 " in text


@pytest.mark.parametrize("experiment", ["grpo", "sft", "reward_model"])
def test_the_summary_of_every_kind_of_run_has_the_same_order(ended: Any, experiment: str) -> None:
    run = ended(experiment)
    run.metrics(*({"step": step, "train/loss": 3.0 / step, "reward/mean": 0.5} for step in range(1, 5)))
    run.checkpoint(4)
    block = run.finish()[1].rpartition("\n\n")[2].splitlines()
    use = "use" if experiment == "reward_model" else "chat"
    assert [line[:8].strip() for line in block if line[:8].strip()] == ["model", "curve", "metrics", use, "next"]


def test_a_run_without_a_step_has_a_summary(ended: Any) -> None:
    run = ended()
    summary, text = run.finish("failed", 1, "server/0: no room")
    assert (summary["steps"], summary["model"], summary["score"], summary["objective"]) == (0, None, None, None)
    assert not (run.folder / "curve.svg").exists()
    assert "failed: 0 steps" in text and "model" not in text and "resume   " not in text


def test_supervised_learning_shows_losses_and_has_one_as_objective(ended: Any) -> None:
    run = ended("sft", "total_train_steps=10")
    run.metrics(*({"step": step, "train/loss": 3.0 / step} for step in range(1, 11)), {"step": 10, "eval/loss": 0.4})
    run.checkpoint(10)
    summary, text = run.finish()
    assert (summary["objective"], summary["objective_metric"], summary["score"]) == (0.4, "eval/loss", None)
    assert "held-out loss 0.4; loss 1.37 -> 0.387\n" in text
    same = "python -m launcher --config sft.yaml actor.lr=3e-4 'task.args={digits: 2}'"
    assert f"next     {same} model.lr=7e-4 " in text and f"{same} total_steps=20 " in text
    assert "model    runs/adding/r0001/checkpoints/step_000010  (a Hugging Face directory)\ncurve  " in text
    assert "chat     python -m launcher chat runs/adding/r0001\nnext " in text


def test_a_run_that_its_rows_ended_is_offered_more_epochs(ended: Any) -> None:
    run = ended("sft", "total_train_steps=300", "total_train_epochs=2")
    run.metrics(*({"step": step, "train/loss": 3.0 / step} for step in range(1, 11)))
    text = run.finish()[1]
    assert " total_train_epochs=4 " in text and "twice as many epochs" in text and "total_steps" not in text


def test_a_model_trained_on_random_tokens_is_not_offered(ended: Any) -> None:
    run = ended("sft")
    fake = "  fake:\n    batch_size: 4\n    seq_len: 32\n"
    text = (run.folder / "config.yaml").read_text()
    assert text.count("train_dataset:\n") == 1 and text.count("  fake: null\n") == 2
    (run.folder / "config.yaml").write_text(text.replace("  fake: null\n", fake, 1))
    run.metrics({"step": 1, "train/loss": 2.0, "perf/tokens_per_s": 50.0})
    run.checkpoint(1)
    summary, text = run.finish()
    assert summary["model"] is None and "model" not in text and "Hugging Face" not in text


@pytest.mark.parametrize(("steps", "shown"), [(1, "3"), (2, "3 -> 1.5"), (3, "3 -> 1"), (5, "2.25 -> 0.675")])
def test_the_start_and_end_means_of_a_short_curve_share_no_value(ended: Any, steps: int, shown: str) -> None:
    run = ended("sft")
    run.metrics(*({"step": step, "train/loss": 3.0 / step} for step in range(1, steps + 1)))
    assert f"\nloss {shown}\n" in run.finish()[1]


def test_a_reward_model_shows_its_accuracy_and_its_use(ended: Any) -> None:
    run = ended("reward_model")
    lines = [{"step": step, "train/loss": 0.7, "train/accuracy": 0.5 + step / 25} for step in range(1, 11)]
    run.metrics(*lines, {"step": 10, "eval/loss": 0.4, "eval/accuracy": 0.93})
    run.checkpoint(10)
    summary, text = run.finish()
    assert (summary["objective"], summary["objective_metric"]) == (0.93, "eval/accuracy")
    assert "held-out accuracy 0.93; accuracy 0.62 -> 0.82\n" in text
    lines = text.splitlines()
    assert "model    runs/adding/r0001/checkpoints/step_000010  (a Hugging Face directory)" in lines
    reward = "use      python -m launcher --config grpo.yaml reward.name=model +reward.args.path=runs/adding/r0001"
    code = lines[lines.index(reward) + 1]
    assert 'AutoModelForSequenceClassification.from_pretrained("runs/adding/r0001/checkpoints/step_000010")' in code


def test_the_objective_is_the_configured_metric() -> None:
    lines: list[dict[str, Any]] = [
        {"step": 1, "train/loss": 2.0, "reward/mean": 0.5},
        {"step": 2, "train/loss": None, "reward/mean": 0.6},
    ]
    record = RunRecord(lines, [])
    assert record.objective("reward/mean") == 0.6
    assert record.objective("train/loss") == 2.0
    assert record.objective("eval/score") is None
    assert record.objective(None) == 0.6
    assert RunRecord(lines, [{"step": 2, "eval/loss": 1.0}]).objective(None) == 1.0
    assert RunRecord(lines, [{"step": 2, "eval/loss": 1.0, "eval/score": 0.9}]).objective(None) == 0.9
    assert RunRecord([], []).objective(None) is None


def evaluated(
    step: int, score: float | None, failed: int = 0, newest: int | None = None, **more: Any
) -> dict[str, Any]:
    """As the controller writes an evaluation of 50 rows."""
    versions = {"eval/version_min": float(step), "eval/version_max": float(step if newest is None else newest)}
    counts = {"eval/rows": 50.0, "eval/failed": float(failed), "eval/rejected": 0.0, "eval/samples": 50.0 - failed}
    return {"step": step, "eval/due_step": float(step), **versions, **counts, "eval/score": score, **more}


def test_after_a_recovery_a_repeated_evaluation_replaces_the_first() -> None:
    lines = [
        *(evaluated(10, 0.2, newest=12), {"step": 12, "train/loss": 1.0}, evaluated(15, 0.1)),
        *(evaluated(15, 0.5, attempt=2), {"step": 30, "eval/loss": 0.8}),
    ]
    found = [(line["step"], line.get("eval/score")) for line in evaluation_lines(lines)]
    assert found == [(10, 0.2), (15, 0.5), (30, None)]


def test_failed_rows_are_shown_beside_the_last_score(ended: Any) -> None:
    run = ended()
    run.metrics(evaluated(0, 0.4), {"step": 1, "train/loss": 0.1, "reward/mean": 0.5}, evaluated(1, 0.6, failed=3))
    summary, text = run.finish()
    assert (summary["score"], summary["score_missing"]) == (0.6, None)
    assert summary["evaluated_rows"] == {"rows": 50, "failed": 3, "rejected": 0}
    assert "held-out score 0.4 -> 0.6; reward 0.5\nheld-out 0.600 at step 1 (3 of 50 rows failed)\n" in text


def failed(error: str, same: int, groups: int) -> dict[str, Any]:
    return {"rollout/failed": groups, "rollout/error_groups": same, "rollout/error": error}


def test_failed_groups_are_counted_with_their_most_frequent_error(ended: Any) -> None:
    run = ended()
    run.metrics({"step": 1, "train/loss": 0.1, "rollout/failed": 0.0})
    assert run.finish()[0]["failed_groups"] is None
    run.metrics(
        *(
            {"step": step, "train/loss": 0.1, **failures}
            for step, failures in enumerate((failed("a", 2, 3), failed("b\x1b", 2, 2), failed("b\x1b", 1, 1)), 1)
        ),
        {"step": 4, "train/loss": 0.1, "rollout/error": ["no text"]},
    )
    summary, _ = run.finish()
    assert summary["failed_groups"] == {"failed": 6, "error": r"b\x1b", "error_groups": 3}
    assert "rollout/error" not in summary["last"], "a text is no metric"


def test_a_missing_last_score_is_not_replaced_by_an_older_one(ended: Any) -> None:
    run = ended()
    last = evaluated(1, None, failed=20) | {"eval/error": "ValueError: judge is down"}
    run.metrics(evaluated(0, 0.4), {"step": 1, "train/loss": 0.1, "reward/mean": 0.5}, last)
    summary, text = run.finish()
    assert (summary["score"], summary["objective"], summary["objective_metric"]) == (None, None, "eval/score")
    why = (
        "20 of 50 rows failed (40%, evaluator.max_failed_share allows 10%); "
        "most frequent error: ValueError: judge is down; see logs/episodes-*.log"
    )
    assert summary["score_missing"] == why and summary["curve"] == [[0, 0.4]]
    assert f"held-out score 0.4 -> none; reward 0.5\nheld-out: no score at step 1: {why}\n" in text
    assert "eval/error" not in summary["last"], "a text is no metric"
    block = text.rpartition("\n\n")[2].splitlines()
    assert block[0].split() == ["logs", "runs/adding/r0001/logs/episodes-*.log"]
    assert [line[:8].strip() for line in block if line[:8].strip()] == ["logs", "curve", "metrics", "next"]


def test_rejected_rows_alone_do_not_point_to_the_logs(ended: Any) -> None:
    run = ended()
    last = evaluated(1, None) | {"eval/rejected": 20.0}
    run.metrics({"step": 1, "train/loss": 0.1, "reward/mean": 0.5}, last)
    summary, text = run.finish()
    share = "(40%, evaluator.max_failed_share allows 10%)"
    assert summary["score_missing"] == f"20 of 50 rows were rejected by the workflow {share}"
    assert "logs" not in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (evaluated(0, 0.42), "held-out 0.420 at the start"),
        (evaluated(0, 0.42) | {"eval/score_low": 0.4, "eval/score_high": 0.5}, "held-out 0.420 at the start"),
        (evaluated(50, 0.9, newest=52), "held-out 0.900 at step 50 (weights of steps 50 to 52)"),
        (
            evaluated(50, 0.9, 1, 52),
            "held-out 0.900 at step 50 (weights of steps 50 to 52; 1 of 50 rows failed)",
        ),
        (
            evaluated(121, 0.976, newest=122) | {"eval/due_step": 120.0},
            "held-out 0.976 at step 120 (weights of steps 121 to 122)",
        ),
        (
            evaluated(121, 0.976) | {"eval/due_step": 120.0},
            "held-out 0.976 at step 120 (weights of step 121)",
        ),
        (
            evaluated(50, 0.9, 1) | {"eval/rejected": 2.0},
            "held-out 0.900 at step 50 (1 of 50 rows failed and 2 were rejected by the workflow)",
        ),
        (
            evaluated(0, None) | {"eval/rejected": 50.0},
            "held-out: no score at the start: 50 of 50 rows were rejected by the workflow",
        ),
        (evaluated(0, math.nan), "held-out: no score at the start: it is not finite"),
        (
            evaluated(0, None, failed=20),
            "held-out: no score at the start: 20 of 50 rows failed (40%, evaluator.max_failed_share allows less); "
            "see logs/episodes-*.log",
        ),
        ({"step": 2, "eval/loss": 1.1}, "held-out loss 1.100 at step 2"),
        ({"step": 2, "eval/margin": 1.1}, None),
    ],
)
def test_an_evaluation_in_words(line: dict[str, Any], words: str | None) -> None:
    assert evaluation_text(line["step"], line) == words


def test_the_picture_is_xml_with_a_line_a_legend_and_axes(ended: Any) -> None:
    run = ended()
    run.learnt()
    run.finish()
    root = ElementTree.parse(run.folder / "curve.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    words = [element.text for element in root.iter(f"{space}text")]
    assert {"grpo-addition/r0001", "step", "reward", "held-out score", "0", "40", "0.4", "1"} <= set(words)
    lines = [element.attrib["points"].split() for element in root.iter(f"{space}polyline")]
    assert [len(points) for points in lines] == [40, 5]
    assert len(list(root.iter(f"{space}circle"))) == 5
    first, last = (tuple(map(float, point.split(","))) for point in (lines[1][0], lines[1][-1]))
    assert first[0] < last[0] and first[1] > last[1], "a rising score is drawn rising"


def test_names_cannot_break_the_picture() -> None:
    ElementTree.fromstring(svg_chart("a<b>&'\"", [Series("<x>", [(1, 1.0), (2, math.nan), (3, 2.0)])]))


def test_the_reward_says_how_many_answers_have_one(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    line = {"train/loss": 0.1, "reward/mean": 1.0, "rollout/answers": 50, "reward/answers_without_reward": 30}
    ended.metrics(*({"step": step, **line} for step in (1, 2)))
    summary, text = ended.finish()
    assert summary["without_reward"] == {"answers": 60, "of": 100}
    assert "reward 1 -> 1\nreward is that of the 40% of the answers that have one" in text
    ended.metrics(*({"step": step, **line, "reward/answers_without_reward": 0} for step in (1, 2)))
    summary, text = ended.finish()
    assert summary["without_reward"] is None and "answers that have one" not in text


def test_a_chart_shows_a_rise_as_a_rise() -> None:
    rows = terminal_chart(
        [Series("score", [(step, step / 10) for step in range(11)], marked=True)], width=40, height=11
    )
    marks = [(row, line.index("●")) for row, line in enumerate(rows[:-1]) if "●" in line]
    assert len(marks) == 11 and [column for _, column in marks] == sorted((column for _, column in marks), reverse=True)
    assert rows[0].startswith("   1┤") and rows[10].startswith("   0┤●")
    assert rows[-1].strip() == "● score"
    assert max(map(len, rows)) <= 40
    line = terminal_chart([Series("loss", [(step, 1.0 - step / 100) for step in range(101)])], width=40, height=5)
    assert line[0][5] != " " and line[4][-1] != " " and line[0][20:].strip() == ""
    assert terminal_chart([Series("none", [])]) == [] and terminal_chart([Series("nan", [(1, math.nan)])]) == []


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.45, 0.95], (0.4, 0.6, 0.8, 1.0)),
        ([0.0, 1.0], (0.0, 0.5, 1.0)),
        ([3.0, 3.0], (1.0, 2.0, 3.0, 4.0, 5.0)),
        ([-0.001, 0.002], (-0.001, 0.0, 0.001, 0.002)),
        ([0.0, 0.0], (-0.5, 0.0, 0.5)),
    ],
)
def test_ticks_are_round_and_hold_all_values(values: list[float], ticks: tuple[float, ...]) -> None:
    axis = value_axis(values)
    assert axis.low <= min(values) and axis.high >= max(values)
    assert axis.ticks == pytest.approx(ticks)


def test_steps_are_marked_at_whole_numbers() -> None:
    assert step_axis([0, 160]).ticks == (0, 50, 100, 150)
    assert step_axis([1, 3]).ticks == (1, 2, 3)
    assert step_axis([5]).ticks == (5, 6)


@pytest.mark.parametrize(("value", "text"), [(1e-4, "1e-4"), (6.667e-4, "7e-4"), (3.3e-6, "3e-6"), (0.5, "5e-1")])
def test_rates_are_suggested_in_short(value: float, text: str) -> None:
    assert short_number(value) == text
