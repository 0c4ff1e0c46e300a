"""What AReaL's example files resolve to: prompt, reward and workflow, and which answers to their rows are right."""

from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.data.row_format import RowFormat
from areal_like.rollout.episodes.rewards import load_reward, reward_spec
from areal_like.rollout.episodes.rewards.base import parse_reward
from tests.config.areal_files.expected import SUBCLASS_FILES
from tests.ring.test_areal_examples import EXAMPLES
from tests.support import areal_examples as examples
from tests.support.commands import AREAL

BOXED = "\nPut your final answer within \\boxed{}."
QUESTION = "Ann has 5 bags of 3 apples. How many?"
GSM8K: dict[str, Any] = {
    "row": examples.gsm8k(5),
    "prompt": QUESTION + BOXED,
    "reward": "math",
    "right": ["5 * 3 = \\boxed{15}", "It is \\boxed{15.0}"],
    "wrong": ["\\boxed{16}", "\\boxed{51}", "I do not know."],
}
BOBA: dict[str, Any] = {
    "row": examples.boba(41),
    "prompt": "What is 41 + 1?",
    "reward": "math",
    "right": ["<think>easy</think>\\boxed{42}", "\\boxed{\\frac{84}{2}}"],
    "wrong": ["\\boxed{41}", "forty-two"],
}
COUNTDOWN: dict[str, Any] = {
    "row": examples.countdown(2),
    "prompt": "<|im_start|>user\nMake 10 of [3, 3, 4].<|im_end|>\n<|im_start|>assistant\n",
    "reward": "countdown",
    "right": ["<answer>3 + 3 + 4</answer>", "<think>no</think><answer>4 + 3 + 3 = 10</answer>"],
    "wrong": ["<answer>5 + 5</answer>", "<answer>3 + 4</answer>", "10"],
}
TOOLS = (
    "Think step by step. A fenced block of the language python in your answer is run, and what it prints is inserted "
    "behind it. Put your final answer within \\boxed{}."
)
TORL: dict[str, Any] = {
    "row": examples.torl(7),
    "before": [{"role": "system", "content": TOOLS}],
    "prompt": "What is 7 * 3?",
    "reward": "math",
    "right": ["\\boxed{21}", "7 * 3 = \\boxed{20+1}"],
    "wrong": ["\\boxed{7}", "\\boxed{73}", "I do not know."],
}
ALL = {name: GSM8K for name in ("grpo", "dapo", "drgrpo", "liteppo", "lora", "gsm8k_ppo", "reinforce", "rloo")}
ALL |= {name: GSM8K for name in ("reinforce_baseline", "grpo_deprecated", "multi_turn_math")}
ALL |= {"boba_vllm": BOBA, "countdown": COUNTDOWN, "tir_math": TORL}
WORKFLOWS = {"multi_turn_math": "multi_turn", "tir_math": "tool_integrated"}
SUPERVISED = {"sft", "hhrlhf_rw"}


def test_every_example_that_is_run_has_a_case():
    assert {*ALL, *SUPERVISED} == {example.id for example in EXAMPLES}


@pytest.mark.parametrize("name", ALL)
def test_a_right_answer_is_right_and_a_wrong_one_wrong(name):
    schema = SUBCLASS_FILES[name][0] if name in SUBCLASS_FILES else None
    config, expected = load(AREAL / f"{name}.yaml", [], schema=schema).config, ALL[name]
    assert (config.reward.name, config.workflow.name) == (expected["reward"], WORKFLOWS.get(name))

    row = RowFormat(config.train_dataset, "train_dataset")(expected["row"])
    is_text = name == "countdown"
    chat = [*expected.get("before", []), {"role": "user", "content": expected["prompt"]}]
    assert row["prompt"] == (expected["prompt"] if is_text else chat)

    reward = load_reward(reward_spec(config.reward, config.task.name, config.task.args, Path(), Path()))
    assert reward is not None

    def score(answer: str) -> float:
        given = parse_reward(reward(row["prompt"], answer, row))
        return given.parts.get("score", given.value)

    assert [score(answer) for answer in expected["right"]] == [1] * len(expected["right"])
    assert [score(answer) for answer in expected["wrong"]] == [0] * len(expected["wrong"])


@pytest.mark.parametrize(
    ("name", "raw", "fields"),
    [
        (
            "sft",
            examples.gsm8k(5),
            {"prompt": QUESTION, "answer": "5 * 3 = 15\n#### 15"},
        ),
        ("hhrlhf_rw", examples.hh_rlhf(5), {"prompt": "", **examples.hh_rlhf(5)}),
    ],
)
def test_rows_of_supervised_examples_keep_their_answers(name, raw, fields):
    row = RowFormat(load(AREAL / f"{name}.yaml", []).config.train_dataset, "train_dataset")(raw)
    assert {key: row[key] for key in fields} == fields
