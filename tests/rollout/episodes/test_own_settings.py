"""What environments have of their own rules their rows alone, whatever they are called."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_like.config.load import load
from areal_like.data.datasets import load_datasets
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.own_settings import environment_settings, own_rewards
from areal_like.rollout.episodes.runner import EpisodeRunner
from areal_like.rollout.episodes.workflows import make_workflow
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease

EXPERIMENT: dict[str, Any] = yaml.safe_load("""
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: e
total_train_steps: 1
train_dataset: {batch_size: 1}
valid_dataset: {path: held_out.jsonl}
reward: {name: exact}
environments: {train: [{path: valid.jsonl, max_new_tokens: 3, reward: {name: numeric}}]}
""")


class Seen:
    """A workflow that leaves all rows out."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}

    async def run(self, episode: Episode, row: dict[str, Any]) -> None:
        self.limits[row["prompt"]] = episode.lease["sampling"]["max_new_tokens"]


def limits_of(folder: Path, experiment: dict[str, Any], split: str, **given: Any) -> list[int]:
    """Most tokens of an answer to the first row of a split, whose lease says 4 or what evaluations set."""
    (folder / "x.yaml").write_text(yaml.safe_dump(experiment))
    config: Any = load(folder / "x.yaml", []).config
    places, workflow = SearchFolders(folder, folder), Seen()
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition", folder), {})
    datasets = load_datasets(config, places, tokenizer)
    own = environment_settings(config, places, workflow)
    assert set(own) == set(own_rewards(config, places)) == set(datasets.environments)
    tools: Any = WorkerTools(tokenizer, None, Rewards(), False, False, 0.5)  # type: ignore[arg-type]
    runner = EpisodeRunner(tools, datasets, workflow, False, own)
    (inspected,) = asyncio.run(runner.inspect({split: [0]}))[split]
    one = lease(0, "", split=split, row_hash=inspected[1], **given)
    sampling = {**one["sampling"], "max_new_tokens": config.evaluator.gconfig.max_new_tokens or 4}
    asyncio.run(runner.run({**one, "sampling": sampling}))
    return list(workflow.limits.values())


@pytest.mark.parametrize("main", ["agent", None])
def test_environments_with_the_workflow_agent_share_one_limit_of_agents_at_a_time(
    tmp_path: Path, main: str | None
) -> None:
    each = {"id": "addition", "workflow": {"name": "agent"}}
    trained = [{**each, "name": name} for name in ("one", "two")]
    agent = {"function": "agents.py:solve", "max_concurrent": 3}
    (tmp_path / "agents.py").write_text("def solve(row): ...")
    (tmp_path / "x.yaml").write_text(
        yaml.safe_dump({**EXPERIMENT, "valid_dataset": None, "environments": {"train": trained}, "agent": agent})
    )
    config: Any = load(tmp_path / "x.yaml", []).config
    places = SearchFolders(tmp_path, tmp_path)
    workflow = make_workflow(main, {}, places, config.agent)
    workflows = {id(each.workflow) for each in environment_settings(config, places, workflow).values()}
    assert len(workflows) == 1
    assert (id(workflow) in workflows) is (main == "agent")


@pytest.mark.parametrize(("split", "limit"), [("train", 3), ("valid", 4)])
def test_an_environment_called_valid_rules_no_rows_of_valid_dataset(tmp_path: Path, split: str, limit: int) -> None:
    for file, prompt in (("valid", "1+1="), ("held_out", "2+2=")):
        (tmp_path / f"{file}.jsonl").write_text(json.dumps({"prompt": prompt, "answer": "2"}))
    assert limits_of(tmp_path, EXPERIMENT, split) == [limit]


@pytest.mark.parametrize(
    ("split", "evaluated", "limit"),
    [("train", None, 3), ("train", 5, 3), ("valid", None, 3), ("valid", 5, 5)],
)
def test_held_out_rows_of_an_environment_have_the_length_that_evaluations_set(
    tmp_path: Path, split: str, evaluated: int | None, limit: int
) -> None:
    own = {"environments": {"train": [{"id": "addition", "max_new_tokens": 3}]}, "valid_dataset": {"path": ""}}
    experiment = {**EXPERIMENT, **own, "evaluator": {"gconfig": {"max_new_tokens": evaluated}}}
    assert limits_of(tmp_path, experiment, split, purpose="train" if split == "train" else "eval") == [limit]
