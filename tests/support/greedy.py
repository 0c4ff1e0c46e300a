"""Share of held-out rows that a model answers exactly with greedy decoding."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from areal_like.data.tasks.base import Row
from areal_like.data.tokenizer import TextTokenizer

ROWS_AT_ONCE = 500


@torch.no_grad()
def greedy_accuracy(folder: Path, rows: Sequence[Row]) -> float:
    """Of the model in `folder`: the share of `rows` whose `answer`, and then the end, it writes.

    Nothing is generated: a greedy answer is the right one if and only if every token of the right one is the likeliest
    after those before it.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    model, tokenizer = loaded.eval(), TextTokenizer(folder)
    prompts = tokenizer.encode_all([row["prompt"] for row in rows])
    answers = tokenizer.encode_all([row["answer"] for row in rows], special=False)
    shapes = sorted(range(len(rows)), key=lambda row: (len(prompts[row]), len(answers[row])))
    right = 0
    for (prompt_length, _), members in groupby(shapes, key=lambda row: (len(prompts[row]), len(answers[row]))):
        alike = list(members)
        for start in range(0, len(alike), ROWS_AT_ONCE):
            part = alike[start : start + ROWS_AT_ONCE]
            ids = torch.tensor([[*prompts[row], *answers[row], tokenizer.eos_id] for row in part])
            likeliest = model(ids[:, :-1]).logits.argmax(-1)[:, prompt_length - 1 :]
            right += int((likeliest == ids[:, prompt_length:]).all(-1).sum())
    return right / len(rows)
