"""How well a model knows the answers of rows, without generating any."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from areal_like.data.tasks.base import Row
from areal_like.data.tokenizer import TextTokenizer

ROWS_AT_ONCE = 500


def greedy_accuracy(folder: Path, rows: Sequence[Row]) -> float:
    """Of the model in `folder`: the share of `rows` whose `answer`, and then the end, it writes with greedy decoding.

    A greedy answer is the right one if and only if every token of the right one is the likeliest after those before it.
    """
    right = sum(int((logits.argmax(-1) == answers).all(-1).sum()) for logits, answers in _predicted(folder, rows))
    return right / len(rows)


def answer_chance(folder: Path, rows: Sequence[Row]) -> float:
    """Of the model in `folder`: the mean probability that it writes a row's `answer`, and then the end, when it samples
    with temperature 1."""
    chances = (
        logits.log_softmax(-1).gather(-1, answers.unsqueeze(-1)).sum(dim=(1, 2)).exp()
        for logits, answers in _predicted(folder, rows)
    )
    return sum(float(chance.sum()) for chance in chances) / len(rows)


@torch.no_grad()
def _predicted(folder: Path, rows: Sequence[Row]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and tokens of the answers, of some rows of equal lengths at a time."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    model, tokenizer = loaded.eval(), TextTokenizer(folder)
    prompts = tokenizer.encode_all([row["prompt"] for row in rows])
    answers = tokenizer.encode_all([row["answer"] for row in rows], special=False)
    shapes = sorted(range(len(rows)), key=lambda row: (len(prompts[row]), len(answers[row])))
    for (prompt_length, _), members in groupby(shapes, key=lambda row: (len(prompts[row]), len(answers[row]))):
        alike = list(members)
        for start in range(0, len(alike), ROWS_AT_ONCE):
            part = alike[start : start + ROWS_AT_ONCE]
            ids = torch.tensor([[*prompts[row], *answers[row], tokenizer.eos_id] for row in part])
            yield model(ids[:, :-1]).logits[:, prompt_length - 1 :], ids[:, prompt_length:]
