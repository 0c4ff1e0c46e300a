"""The plan on one screen, and the warnings printed at a start."""

import re
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.problems import Problem
from launcher.plan.render import render
from launcher.plan.render_brief import (
    MOST_PROBLEMS,
    MOST_WARNINGS,
    SCREEN_LINES,
    render_brief,
    warning_lines,
)
from launcher.sweep.report import PlannedPoint, plan_lines
from tests.support.commands import Run
from tests.support.planning import loaded, plan_of

SHIPPED = ["grpo", "ppo", "sft", "reward_model", "smollm2_sft", "countdown", "gsm_symbolic"]
WRONG = ("cluster.name_resolve.type=memory", "launcher.env_file=[no.env]", "actor.dtype=bfloat16")


def titles(text: str) -> list[str]:
    return [after for before, after in zip(text.split("\n"), text.split("\n")[1:], strict=False) if not before]


@pytest.mark.parametrize("experiment", SHIPPED)
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_plans_of_shipped_experiments_fit_on_a_screen(experiment: str, gpus: int) -> None:
    plan = plan_of(experiment, gpus=gpus)
    lines = render_brief(plan, width=100).splitlines()
    assert len(lines) <= SCREEN_LINES == 40
    assert all(len(line) <= 100 for line in lines if "python -m" not in line)
    assert not any("..." in line or " more: --dry-run" in line for line in lines), "all of it has room"
    assert plan.warnings == () or gpus


def test_placement_comes_before_the_step_and_the_settings() -> None:
    text = render_brief(plan_of("grpo", "actor.lr=1e-4", gpus=4))
    places, step, settings, after = titles(text)[:4]
    assert places.endswith("processes on this machine, including guardian and launcher")
    assert (step, settings, after) == ("a step", "set over the file's defaults", "next")
    assert re.search(r"trainer/0\.\.1 +trainer rank +GPUs 2-3", text)
    assert "command line: actor.optimizer.lr=0.0001 (was 0.0003)" in text
    assert "grpo.yaml: experiment_name=grpo-addition" in text
    assert "actor.path" not in text, "that is of a group that the file builds on"
    assert "--dry-run=full" in text.splitlines()[-1]


def test_what_follows_from_the_name_of_a_dataset_is_shown_with_it() -> None:
    gsm8k = "train_dataset.path=openai/gsm8k"
    text = " ".join(render_brief(plan_of("sft", gsm8k, "valid_dataset=null")).split())
    assert "openai/gsm8k is known as gsm8k: train_dataset.fields.prompt=question - sft.yaml: " in text
    known = {
        each.key: each.base for each in plan_of("grpo", gsm8k, "train_dataset.as_chat=true").over_base if each.known
    }
    assert known["reward.name"] == "addition", "that of the file's task, which it replaces"
    assert "train_dataset.as_chat" not in known


def test_items_of_a_list_are_shown_as_yaml_with_the_keys_that_are_set() -> None:
    trained = "environments.train=[{id: addition, ratio: 3}]"
    plan = plan_of("grpo", "task=null", trained)
    assert "command line: environments.train=[{id: addition, ratio: 3.0}] (was [])" in render_brief(plan)
    (shown,) = [each for each in plan_of("multi_env").over_base if each.key == "environments.train"]
    assert {*shown.value[0]} == {"id", "name", "args"}


def test_overrides_equal_to_the_file_are_shown() -> None:
    assert "actor.eps_clip=0.2 (as it was)" in render_brief(plan_of("grpo", "actor.eps_clip=0.2"))
    off = " ".join(render_brief(plan_of("grpo", "valid_dataset=null")).split())
    assert "valid_dataset=null (was a section)" in off and "valid_dataset.drop_last" not in off


def test_a_group_of_the_command_line_shows_what_it_changes_in_the_file() -> None:
    """Compared with the group that the file names, which it replaces."""
    text = " ".join(render_brief(plan_of("grpo", "algorithm=rloo")).split())
    assert (
        "the command line: actor.reward_norm.mean_leave1out=true (was false), "
        "actor.loss_aggregation=token_mean (was fixed_length) - grpo.yaml:"
    ) in text
    assert "the command line" not in render_brief(plan_of("grpo", "algorithm=dr_grpo", "rollout=embedded"))


def test_obstacles_come_first_then_warnings() -> None:
    plan = plan_of("grpo", *WRONG)
    text = render_brief(plan, width=100)
    against, warnings = titles(text)[:2]
    assert (against, warnings) == ("cannot start here (2)", "warnings (1)")
    shown = " ".join(text.split())
    assert all(problem.text() in shown for problem in plan.problems)
    assert "exit code 2" in shown and "start it" not in shown


def test_omitted_lines_are_counted_with_where_to_see_them() -> None:
    plan: Any = plan_of("grpo")
    many = tuple(Problem(f"key{number:02}", "is wrong " + "and " * 20 + "so on") for number in range(30))
    plan = plan._replace(cannot_start=many, warnings=tuple(f"key{number}: " + "long " * 40 for number in range(20)))
    text = render_brief(plan, width=100)
    assert "cannot start here (30)" in text
    assert f"and {30 - MOST_PROBLEMS} more, of key{MOST_PROBLEMS:02}, " in text and "key29: --dry-run=full" in text
    assert "warnings (20)" in text and f"  - and {20 - MOST_WARNINGS} more: --dry-run=full\n" in text
    assert text.count("long") == 40 * MOST_WARNINGS, "a warning is wrapped, never cut"
    step, settings = (
        text.split(f"\n{title}\n")[1].split("\n\n")[0] for title in ("a step", "set over the file's defaults")
    )
    assert step.splitlines()[-1] == f"  - and {len(plan.batch.words) - step.count('  - ') + 1} more: --dry-run=full"
    written = len(plan.over_base) - settings.count("=") + settings.count("--dry-run=")
    assert settings.splitlines()[-1] == f"  - and {written} more: --dry-run=full"
    assert all(f"key{number:02}: is wrong" in render(plan) for number in range(30))


@pytest.mark.parametrize("width", [70, 100, 200])
def test_prose_stays_within_the_width_and_colour_changes_nothing_else(width: int) -> None:
    plan = plan_of("grpo", *WRONG)
    assert all(len(line) <= width for line in render_brief(plan, width=width).splitlines() if " --config " not in line)
    assert re.sub(r"\033\[\d+m", "", render_brief(plan, color=True, width=width)) == render_brief(plan, width=width)
    assert "\033[" in render_brief(plan, color=True)


def test_a_start_prints_the_warnings_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.supervisor.guardian.run_guarded", lambda _begin, _folder: 0)
    run = Run(capsys)
    assert run("--config", "grpo.yaml") == (0, "", "")
    words = ("actor.dtype=float16", "actor.lora_alpha=32", "train_dataset.num_workers=2")
    done = run("--config", "grpo.yaml", *words)
    lines = done.err.splitlines()
    assert done.code == 0 and lines[0].startswith("warning: actor.dtype: float16 is slow on this CPU")
    for key in ("actor.lora_alpha", "train_dataset.num_workers"):
        assert len([line for line in lines if line.startswith(f"warning: {key}: has no effect")]) == 1


def test_warnings_that_do_not_fit_are_counted() -> None:
    plan: Any = plan_of("grpo")
    assert warning_lines(plan, 100) == []
    lines = warning_lines(plan._replace(warnings=("seed: " + "long " * 40,)), 80)
    assert all(len(line) <= 80 for line in lines) and " ".join(lines).count("long") == 40, "wrapped, never cut"
    many = warning_lines(plan._replace(warnings=tuple(f"key{number}: odd" for number in range(9))), 80)
    assert len(many) == MOST_WARNINGS + 1 and many[-1] == "and 3 more warnings: --dry-run=full"


def test_a_sweep_shows_the_first_plan_and_the_differences_of_others() -> None:
    chosen = (("seed=1",), ("seed=2", *WRONG[:1]), ("seed=3", *WRONG[:1]))
    planned = [
        PlannedPoint(n, f"t-{n}", loaded("grpo", *words), plan_of("grpo", *words)) for n, words in enumerate(chosen)
    ]
    text = "\n".join(plan_lines(planned, whole=False))
    assert text.startswith("\npoint 0: t-0\ngrpo: ") and "point 1:" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("points 1, 2: ")]
    assert line.startswith("points 1, 2: cannot start: cluster.name_resolve.type ")
    assert text.endswith("the plans of 2 other points: --dry-run=full")
    whole = "\n".join(plan_lines(planned, whole=True))
    assert all(f"\npoint {number}: t-{number}\n" in whole for number in range(3))
    assert whole.count("settings that differ from the default") == 3
