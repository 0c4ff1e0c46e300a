"""Models with random weights for the checks on a GPU, and a training step of them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from areal_like.training.engine import TrainEngine
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.training_runs import make_engine

TINY = Qwen3Config(
    vocab_size=300,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    initializer_range=0.1,
    tie_word_embeddings=True,
)
QWEN3_0_6B = Qwen3Config(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=True,
)


def sequences_of(lengths: list[int], vocabulary: int) -> Sequences:
    """Random tokens; the second half of each is in the loss, as an answer."""
    ids = np.random.default_rng(1).integers(0, vocabulary, sum(lengths)).astype(np.int32)
    mask = np.concatenate([np.arange(length) >= length // 2 for length in lengths]).astype(np.uint8)
    return Sequences(ids, mask, np.array(lengths))


@contextmanager
def engine_of(shape: Qwen3Config, folder: Path | None = None, **settings: Any) -> Iterator[TrainEngine]:
    """With the weights in `folder`, else random ones; `settings`: keys of its section."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        if folder is None:
            shape.save_pretrained(name)
            settings["init_from_scratch"] = True
        yield make_engine(folder or Path(name), **settings)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def learn(engine: TrainEngine, sequences: Sequences) -> Tensor:
    """Forward and backward pass over all sequences; the loss is a mean over tokens."""
    num = int(sequences.loss_tokens_N.sum())

    def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        return -logprobs.sum() / num

    return engine.accumulate(engine.micro_batches(sequences, range(len(sequences))), loss)


def on_cpu(folder: Path, sequences: Sequences) -> tuple[Tensor, dict[str, Tensor]]:
    """By transformers, on the CPU in float32, one sequence at a time: log-probabilities of the tokens in the loss, and
    the gradient of their mean."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    outputs, num = [], int(sequences.loss_tokens_N.sum())
    for start, length in zip(sequences.starts_N, sequences.lengths_N, strict=True):
        ids = torch.tensor(sequences.token_ids[start : start + length], dtype=torch.int64)
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        logprobs = logprobs[torch.tensor(sequences.target_mask[start + 1 : start + length])]
        torch.autograd.backward(-logprobs.sum() / num)
        outputs.append(logprobs.detach())
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return torch.cat(outputs), gradients
