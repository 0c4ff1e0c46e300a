"""Packed sequences compared with rows padded to the longest: one forward and backward pass over the same tokens."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from areal_like.training.engine import TrainEngine
from areal_like.training.full_tensor import full_tensor
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.training_runs import make_engine

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "tie_word_embeddings": True,
}
"""The built-in model, with more positions."""


def log_uniform(num: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    draw = np.random.default_rng(seed)
    lengths = np.exp(draw.uniform(np.log(shortest), np.log(longest + 1), num)).astype(int)
    return [int(length) for length in lengths.clip(shortest, longest)]


def sequences_of(lengths: list[int], vocabulary: int) -> Sequences:
    """Random tokens; all but the first of each are in the loss."""
    ids = np.random.default_rng(1).integers(0, vocabulary, sum(lengths)).astype(np.int32)
    return Sequences(ids, np.ones(sum(lengths), np.uint8), np.array(lengths))


def measure(num: int = 32, shortest: int = 16, longest: int = 512, repeats: int = 5) -> dict[str, Any]:
    """Interleaved repetitions; reports the minimum CPU time of each, as other load affects it least."""
    lengths = log_uniform(num, shortest, longest)
    sequences = sequences_of(lengths, SHAPE["vocab_size"])
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE, max_position_embeddings=longest)).save_pretrained(folder)
        engine = make_engine(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seconds: dict[str, list[float]] = {"padded": [], "packed": []}
    for _ in range(repeats):
        seconds["padded"].append(_timed(lambda: padded(model, sequences)))
        seconds["packed"].append(_timed(lambda: packed(engine, sequences)))
    ours = {name: full_tensor(one.grad) for name, one in engine.model.named_parameters() if one.grad is not None}
    theirs = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    gaps = [((ours[name] - other).norm() / other.norm()).item() for name, other in theirs.items()]
    best = {name: min(taken) for name, taken in seconds.items()}
    return {
        "sequences": num,
        "tokens": sum(lengths),
        "filled": sum(lengths) / (num * max(lengths)),
        "seconds": best,
        "times_faster": best["padded"] / best["packed"],
        "largest_gradient_difference": max(gaps),
        "runs_s": seconds,
    }


def packed(engine: TrainEngine, sequences: Sequences) -> None:
    engine.optimizer.zero_grad(set_to_none=True)
    micros = engine.micro_batches(sequences, range(len(sequences)))
    engine.accumulate(micros, mean_of(sequences))


def mean_of(sequences: Sequences) -> Callable[[MicroBatch, Tensor, Tensor | None], Tensor]:
    num = int(sequences.loss_tokens_N.sum())
    return lambda micro, logprobs, entropy: -logprobs.sum() / num


def padded(model: torch.nn.Module, sequences: Sequences) -> None:
    """The usual padded batch of transformers."""
    model.zero_grad(set_to_none=True)
    ids_NL = torch.zeros(len(sequences), int(sequences.lengths_N.max()), dtype=torch.int64)
    mask_NL = torch.zeros_like(ids_NL)
    for row, (start, length) in enumerate(zip(sequences.starts_N, sequences.lengths_N, strict=True)):
        ids_NL[row, :length] = torch.from_numpy(sequences.token_ids[start : start + length].astype(np.int64))
        mask_NL[row, :length] = 1
    labels_NL = ids_NL.masked_fill(mask_NL == 0, -100)
    logits_NLV = model(input_ids=ids_NL, attention_mask=mask_NL).logits
    loss = F.cross_entropy(logits_NLV[:, :-1].flatten(0, 1), labels_NL[:, 1:].flatten())
    torch.autograd.backward(loss)


def _timed(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
