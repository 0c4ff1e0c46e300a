"""The starts of experiments: small, with positions for their tasks, and made by a recorded command."""

import json
import shlex
from typing import Any

import pytest
from safetensors.torch import load_file

from areal_like.config.load import load
from areal_like.data.tasks import TEST
from areal_like.data.tasks.countdown import Countdown
from areal_like.data.tasks.programs import Programs
from areal_like.data.tasks.reasoning_gym import ReasoningGym
from areal_like.data.tasks.sums import Sums
from areal_like.data.tasks.word_problems import WordProblems
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder

ARITHMETIC = {
    **{"min_terms": 3, "max_terms": 3, "max_digits": 1, "operators": ["+", "-"]},
    **{"allow_parentheses": False, "allow_negation": False},
}
STARTS: dict[str, tuple[Any, str]] = {
    "tiny-countdown": (Countdown(num_numbers=2, max_number=50, num_rows=1000), "countdown.yaml"),
    "tiny-puzzles": (ReasoningGym("basic_arithmetic", ARITHMETIC), "reasoning_gym.yaml"),
    "tiny-problems": (WordProblems(mixed_forms=True), "gsm_symbolic.yaml"),
    "tiny-tools": (Sums(calls=True), "tools.yaml"),
    "tiny-programs": (Programs(mixed_forms=True), "code.yaml"),
}


@pytest.mark.parametrize("model", STARTS)
def test_prompt_and_answer_have_room(model: str) -> None:
    task, experiment = STARTS[model]
    tokenizer, longest = TextTokenizer(model_folder(f"builtin:{model}")), load(experiment).get("gconfig.max_new_tokens")
    for row in task.rows(TEST):
        texts = (row["prompt"].removeprefix("Calculate "), row["answer"])
        prompt, answer = (len(tokenizer.encode(text, special=False)) for text in texts)
        assert prompt + longest <= 64 and answer + 1 <= longest


@pytest.mark.parametrize("model", STARTS)
def test_a_start_is_small_and_its_command_trains_on_the_task(model: str) -> None:
    folder = model_folder(f"builtin:{model}")
    assert (folder / "model.safetensors").stat().st_size < 2_000_000 and load_file(folder / "model.safetensors")
    origin = json.loads((folder / "origin.json").read_text())
    _, _, _, _, config, *words = shlex.split(origin["command"])
    loaded = load(config, words)
    assert loaded.experiment == "sft" and loaded.get("model.path") == f"builtin:{model}"
    experiment = load(STARTS[model][1])
    environments = experiment.get("environments.train") or ()
    tasks = {experiment.get("task.name"), *(each["id"].partition(":")[0] for each in environments)}
    assert loaded.get("task.name") in tasks
