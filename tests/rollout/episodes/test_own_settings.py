"""What environments have of their own rules their rows alone, whatever they are called."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.data.datasets import load_datasets
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.own_settings import environment_settings, own_rewards
from areal_like.rollout.episodes.runner import EpisodeRunner
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease

EXPERIMENT = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: e
total_train_steps: 1
train_dataset: {batch_size: 1}
valid_dataset: {path: held_out.jsonl}
reward: {name: exact}
environments: {train: [{path: valid.jsonl, max_new_tokens: 3, reward: {name: numeric}}]}
"""


class Seen:
    """A workflow that leaves all rows out."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}

    async def run(self, episode: Episode, row: dict[str, Any]) -> None:
        self.limits[row["prompt"]] = episode.lease["sampling"]["max_new_tokens"]


@pytest.mark.parametrize(("split", "limit"), [("train", 3), ("valid", 4)])
def test_an_environment_called_valid_rules_no_rows_of_valid_dataset(tmp_path: Path, split: str, limit: int) -> None:
    for file, prompt in (("valid", "1+1="), ("held_out", "2+2=")):
        (tmp_path / f"{file}.jsonl").write_text(json.dumps({"prompt": prompt, "answer": "2"}))
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    config: Any = load(tmp_path / "x.yaml", []).config
    places, workflow = SearchFolders(tmp_path, tmp_path), Seen()
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition", tmp_path), {})
    datasets = load_datasets(config, places, tokenizer)
    own = environment_settings(config, places)
    assert set(own) == set(own_rewards(config, places)) == set(datasets.environments) == {"environment/valid"}
    tools: Any = WorkerTools(tokenizer, None, Rewards(), False, False, 0.5)  # type: ignore[arg-type]
    runner = EpisodeRunner(tools, datasets, workflow, False, own)
    (inspected,) = asyncio.run(runner.inspect({split: [0]}))[split]
    one = lease(0, "", split=split, row_hash=inspected[1])
    sampling = {**one["sampling"], "max_new_tokens": 4}
    asyncio.run(runner.run({**one, "sampling": sampling}))
    assert list(workflow.limits.values()) == [limit]
