"""Models with random weights in the shapes of known ones, sequences for them, and a training step."""

import gc
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from areal_like.models.characters import CHARACTERS, write_tokenizer
from areal_like.training.engine import TrainEngine
from areal_like.training.sequences import MicroBatch, Sequences
from tests.gpu.machine import device
from tests.support.training_runs import make_engine

IDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
"""Of the tokenizer of the built-in models."""
TINY = Qwen3Config(  # sizes of which all engines have kernels
    vocab_size=300,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    initializer_range=0.1,
    tie_word_embeddings=True,
    **IDS,
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
    **IDS,
)
LAYERS_7B = Qwen3Config(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=8,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    max_position_embeddings=32768,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=False,
    **IDS,
)
"""Eight of the 28 layers of Qwen2.5-7B, between its embedding and its head."""


def sequences_of(input_lengths: Sequence[int], vocabulary: int, first_in_loss: float = 0.0) -> Sequences:
    """Random tokens, so many that the model gets sequences of these lengths: the last token is only predicted.
    `first_in_loss`: the share of each sequence before its tokens in the loss."""
    lengths_N = np.array(input_lengths) + 1
    ids = np.random.default_rng(1).integers(0, vocabulary, int(lengths_N.sum())).astype(np.int32)
    mask = np.concatenate([np.arange(length) >= max(1, int(length * first_in_loss)) for length in lengths_N])
    return Sequences(ids, mask.astype(np.uint8), lengths_N)


def write_model(folder: Path, shape: Qwen3Config, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A Hugging Face folder with random weights and a tokenizer of few characters."""
    torch.manual_seed(0)
    with device():
        made: Any = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    made.save_pretrained(folder)
    write_tokenizer(folder, min(shape.vocab_size, len(CHARACTERS) + 2))
    del made
    free_memory()
    return folder


@contextmanager
def engine_of(shape: Qwen3Config, folder: Path | None = None, **settings: Any) -> Iterator[TrainEngine]:
    """With the weights in `folder`, else random ones; `settings`: keys of its section."""
    free_memory()
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        if folder is None:
            shape.save_pretrained(name)
            settings["init_from_scratch"] = True
        yield make_engine(folder or Path(name), **settings)
    free_memory()


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def learn(engine: TrainEngine, sequences: Sequences) -> Tensor:
    """Forward and backward pass over all sequences; the loss is a mean over tokens."""
    num = int(sequences.loss_tokens_N.sum())

    def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        return -logprobs.sum() / num

    return engine.accumulate(engine.micro_batches(sequences, range(len(sequences))), loss)


def reference(folder: Path, sequences: Sequences, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """By transformers' own attention on the CPU, one sequence at a time, without our code: log-probabilities of the
    tokens in the loss, and the gradient of their mean."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)
    outputs, num = [], int(sequences.loss_tokens_N.sum())
    for start, length in zip(sequences.starts_N, sequences.lengths_N, strict=True):
        ids = torch.tensor(sequences.token_ids[start : start + length], dtype=torch.int64)
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        logprobs = logprobs[torch.tensor(sequences.target_mask[start + 1 : start + length])]
        torch.autograd.backward(-logprobs.sum() / num)
        outputs.append(logprobs.detach())
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return torch.cat(outputs), gradients
