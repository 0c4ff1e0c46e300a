"""The models of the serving benchmark, and generation by transformers as its reference."""

import functools
import time
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

PROMPT, NEW = 16, 64
TINY = Qwen3Config(
    vocab_size=320,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=1,
)
HEADS, HEAD_DIM, LAYERS = 9, 64, 30


@functools.cache
def tiny(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    return _ready(Qwen3ForCausalLM(TINY))


@functools.cache
def large(seed: int, megabytes: int) -> PreTrainedModel:
    """A model of about this size in bfloat16: the shape of a small real model, with another size of vocabulary."""
    width = HEADS * HEAD_DIM
    layer = 2 * width * width + 2 * width * width // 3 + 3 * width * 4 * width // 3 * 2
    layers = max(1, min(LAYERS, megabytes * 1_000_000 // 3 // layer))
    vocab = max(320, (megabytes * 1_000_000 // 2 - layers * layer) // width // 64 * 64)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 3,
        head_dim=HEAD_DIM,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return _ready(Qwen3ForCausalLM(config))
    finally:
        torch.set_default_dtype(before)


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    model.eval()
    return model


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(2, TINY.vocab_size, (count, PROMPT), generator=generator).tolist()


@torch.inference_mode()
def generate(prompts: list[list[int]]) -> float:
    """Seconds of transformers for as many tokens, with their log-probabilities."""
    began = time.perf_counter()
    ids = torch.tensor(prompts)
    model: Any = tiny(0)
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logprobs = torch.stack(output.logits, 1).float().log_softmax(-1)
    chosen = logprobs.gather(2, output.sequences[:, PROMPT:, None])[:, :, 0].tolist()
    assert len(chosen) == len(prompts) and len(chosen[0]) == NEW
    return time.perf_counter() - began
