"""A row of each known dataset, as its files have it: the prompt and answer it becomes, and what its reward says."""

from typing import Any, NamedTuple

import pytest

from areal_like.config.known_datasets import KNOWN_DATASETS
from areal_like.config.load import load
from areal_like.data.row_format import RowFormat
from areal_like.data.user_code import load_built_in
from areal_like.rollout.episodes.rewards.base import RewardCall

BOX = "\nPut your final answer within \\boxed{}."
LETTER = "\nEnd with the letter of the right choice in \\boxed{}."


class Case(NamedTuple):
    raw: dict[str, Any]
    prompt: str
    right: str
    wrong: str


CASES = {
    "gsm8k": Case(
        {"question": "2 + 3?", "answer": "2 + 3 = 5\n#### 5"}, f"2 + 3?{BOX}", r"So \boxed{5}.", r"\boxed{6}"
    ),
    "math": Case(
        {"problem": "Half?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 1", "type": "Algebra"},
        f"Half?{BOX}",
        r"\boxed{\frac{1}{2}}",
        r"\boxed{2}",
    ),
    "boba": Case(
        {
            "prompt": "<\uff5cUser\uff5c>1+1?<\uff5cAssistant\uff5c><think>\n",
            "solutions": [r"\boxed{2}"],
            "task": "math",
        },
        "1+1?",
        r"\boxed{2}",
        r"\boxed{3}",
    ),
    "torl": Case(
        {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2", "style": "rule"}},
        "1+1?",
        r"\boxed{2}",
        r"\boxed{3}",
    ),
    "countdown": Case(
        {"query": "<user> Make 17.", "target": 17, "numbers": [3, 4, 5]},
        "<user> Make 17.",
        "<answer>3*4+5</answer>",
        "<answer>3+4+5</answer>",
    ),
    "mmlu": Case(
        {"question": "Capital?", "subject": "geography", "choices": ["Oslo", "Rome", "Bern", "Kyiv"], "answer": 1},
        f"Capital?\nA. Oslo\nB. Rome\nC. Bern\nD. Kyiv{LETTER}",
        r"\boxed{B}",
        r"\boxed{A}",
    ),
    "arc": Case(
        {"id": "1", "question": "Sky?", "choices": {"text": ["2", "5"], "label": ["1", "2"]}, "answerKey": "2"},
        f"Sky?\nA. 2\nB. 5{LETTER}",
        r"\boxed{B}",
        r"\boxed{A}",
    ),
}


@pytest.fixture
def experiment(tmp_path):
    def of(text: str) -> Any:
        (tmp_path / "mine.yaml").write_text(f"experiment_name: mine\n{text}")
        return load(tmp_path / "mine.yaml").config

    return of


def test_every_known_dataset_has_a_case():
    assert {*CASES, "hh-rlhf"} == set(KNOWN_DATASETS)


@pytest.mark.parametrize("name", CASES)
def test_a_row_becomes_a_prompt_whose_answers_are_rewarded(experiment, name):
    case, config = (
        CASES[name],
        experiment(f"actor: {{path: a/b}}\ntrain_dataset: {{path: data/{name}, known: {name}}}\n"),
    )
    row = RowFormat(config.train_dataset, "train_dataset")(case.raw)
    prompt = row["prompt"]
    assert (prompt if isinstance(prompt, str) else prompt[-1]["content"]) == case.prompt
    assert isinstance(prompt, str) is (name == "countdown")
    made = load_built_in("reward", "reward.name", config.reward.name)
    reward = RewardCall(made() if isinstance(made, type) else made, "reward", {})
    values = [reward(prompt, answer, row) for answer in (case.right, case.wrong)]
    scores = [value["score"] if isinstance(value, dict) else value for value in values]
    assert scores == [1, 0]


@pytest.mark.parametrize(
    ("name", "answer"), [("gsm8k", "2 + 3 = 5\n#### 5"), ("math", r"It is $\boxed{\frac{1}{2}}$.")]
)
def test_supervised_training_imitates_the_whole_solution(experiment, name, answer):
    config = experiment(f"train_dataset: {{path: a/b, known: {name}, type: sft}}\nmodel: {{path: a/b}}\n")
    row = RowFormat(config.train_dataset, "train_dataset")(CASES[name].raw)
    assert (row["prompt"], row["answer"]) == (CASES[name].prompt.removesuffix(BOX), answer)


def test_the_answer_of_mathematics_is_the_box_of_the_solution_also_beside_a_column_of_that_name(experiment):
    config = experiment("actor: {path: a/b}\ntrain_dataset: {path: HuggingFaceH4/MATH-500}\n")
    raw = {"problem": "1+1?", "solution": r"So $\boxed{2}$ or $\fbox{3}$.", "answer": "another", "unique_id": "1"}
    assert RowFormat(config.train_dataset, "train_dataset")(raw)["answer"] == "3"


def test_a_proof_without_a_result_is_an_error_and_not_a_row_whose_answers_are_all_wrong(experiment):
    config = experiment("actor: {path: a/b}\ntrain_dataset: {path: AI-MO/NuminaMath-CoT, known: math}\n")
    with pytest.raises(ValueError, match=r"'answer' is 'Assume the contrary.*without \\boxed"):
        RowFormat(config.train_dataset, "train_dataset")({"problem": "Prove it.", "solution": "Assume the contrary."})


def test_pairs_are_whole_dialogues(experiment):
    config = experiment("train_dataset: {path: Anthropic/hh-rlhf, type: rw}\nmodel: {path: a/b}\n")
    pair = {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi\n\nAssistant: No"}
    assert RowFormat(config.train_dataset, "train_dataset")(pair) == {"prompt": "", **pair}
