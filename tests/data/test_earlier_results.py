"""Prompts are sorted by the results of an earlier run, which the data has in two columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.data.datasets import load_datasets
from areal_like.data.earlier_results import earlier_difficulty
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder

BASE = "defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]\n"
BASE += "experiment_name: e\ntotal_train_steps: 1\ntrain_dataset: {path: rows.jsonl, batch_size: 1}\n"
BASE += "reward: {name: exact}\ncurriculum: {type: difficulty_pool, from_scratch: false}\n"


def letters(tmp_path: Path, columns: list[dict[str, Any]], *overrides: str) -> str:
    rows = [json.dumps({"prompt": "1+1=", "answer": "2", **each}) for each in columns]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "x.yaml").write_text(BASE)
    config: Any = load(tmp_path / "x.yaml", list(overrides)).config
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition", tmp_path), {})
    return earlier_difficulty(config, load_datasets(config, SearchFolders(tmp_path, tmp_path), tokenizer).train)


ROWS: list[dict[str, Any]] = [
    {"metadata": '{"difficulty": "easy"}', "rollouts": "[]"},
    {"metadata": {"difficulty": "hard"}, "rollouts": []},
    {"metadata": '{"difficulty": "normal"}', "rollouts": "[]"},
    {"metadata": '{"reward": 0.9}', "rollouts": "[]"},
    {"metadata": "{}", "rollouts": '[{"reward": 0.0}, {"reward": 0.2}]'},
    {"metadata": "{}", "rollouts": "[]"},
]


@pytest.mark.shows("curriculum.from_scratch")
def test_rows_are_sorted_by_label_reward_or_rollouts(tmp_path: Path) -> None:
    assert letters(tmp_path, ROWS) == "ehnehn"
    assert letters(tmp_path, ROWS, "curriculum.easy_border=0.95") == "ehnnhn"
    assert letters(tmp_path, ROWS, "curriculum.from_scratch=true") == ""


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"metadata": "{}"}, "no column rollouts"),
        ({"metadata": "{}", "rollouts": "{}"}, "rollouts as a list"),
        ({"metadata": '{"difficulty": "odd"}', "rollouts": "[]"}, "must be one of easy, normal, hard"),
        ({"metadata": '{"difficulty": ["easy"]}', "rollouts": "[]"}, "must be one of easy, normal, hard"),
        ({"metadata": "{", "rollouts": "[]"}, "metadata is not JSON"),
        ({"metadata": '{"reward": "much"}', "rollouts": "[]"}, "a reward that is not a number"),
    ],
)
def test_data_without_valid_results_is_refused_with_the_row(tmp_path: Path, columns: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"curriculum\.from_scratch.*rows\.jsonl:2.*{message}"):
        letters(tmp_path, [ROWS[0], columns])
