"""What training rows lack for pools by difficulty and for tools, before a start."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from tests.support.planning import plan_of

POOLS = ("curriculum.type=difficulty_pool", "curriculum.from_scratch=false")
KEY = "curriculum.from_scratch"


def plan_of_rows(folder: Path, row: dict[str, Any], *overrides: str) -> Plan:
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    (folder / "e.yaml").write_text("defaults: [grpo]\n")
    data = ("task.name=null", "train_dataset.path=rows.jsonl", "valid_dataset=null", "reward.name=exact")
    return build_plan(load(folder / "e.yaml", [*data, "train_dataset.batch_size=4", *overrides]))


def problem(plan: Plan) -> str:
    return next((each.message for each in plan.needs if each.key == KEY), "")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "no column metadata or rollouts"),
        ({"metadata": {}}, "no column rollouts"),
        ({"metadata": {"difficulty": "easy"}, "rollouts": []}, ""),
    ],
)
def test_rows_without_earlier_results_cannot_be_sorted(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    found = problem(plan_of_rows(tmp_path, {"prompt": "1+1=", "answer": "2", **columns}, *POOLS))
    assert message in found and bool(found) == bool(message)


def test_a_built_in_task_has_no_earlier_results() -> None:
    assert "no column metadata or rollouts" in problem(plan_of("grpo", *POOLS))
    assert problem(plan_of("grpo", POOLS[0])) == ""


def warned(plan: Plan) -> bool:
    return any("nothing tells the model of them" in each for each in plan.warnings)


def test_tools_that_nothing_describes_are_a_warning(tmp_path: Path) -> None:
    row = {"prompt": "1+1=", "answer": "2"}
    assert warned(plan_of("grpo", "workflow.name=tools")) and not warned(plan_of("grpo"))
    assert not warned(plan_of("tools"))
    assert warned(plan_of_rows(tmp_path, row, "workflow.name=tools"))
    assert not warned(plan_of_rows(tmp_path, row, "workflow.name=tools", "train_dataset.as_chat=true"))


def test_a_reward_model_that_is_no_run_is_not_to_be_downloaded() -> None:
    plan = plan_of("grpo", "reward.name=model", "+reward.args.path=judge")
    assert any("no run has that name" in each.message for each in plan.needs)
    assert not any("downloads it first" in each for each in plan.warnings)
