"""The last layer of a prompt computes no more than the cache and the first logits need, and the same numbers."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from areal_like.serving.engines.embedded.core.attention import ATTENTION_NAME
from areal_like.serving.engines.embedded.core.kv_cache import KVCache, PrefillWrite
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.model_runner import ModelRunner
from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer
from areal_like.serving.requests import GroupRequest
from tests.support.tiny_models import VOCAB

torch.set_num_threads(1)

MAKERS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
GRANITE = GraniteConfig, GraniteForCausalLM
ROWS, TOKENS = 3, 7


def model_of(kind: tuple[Any, Any], **settings: Any) -> PreTrainedModel:
    """Of two layers, with grouped heads, and weights that are large enough for answers to differ."""
    torch.manual_seed(0)
    config, model = kind
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": VOCAB}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    more = {"max_position_embeddings": 64, "sliding_window": None, "pad_token_id": 0}
    made: PreTrainedModel = model(config(**{**sizes, **heads, **more, **settings})).requires_grad_(False)
    return made


def runner_of(model: PreTrainedModel) -> ModelRunner:
    runner = ModelRunner(model, 1024, lambda row: None, DoubleBuffer(model), 8)
    runner.reserve(ROWS, TOKENS + 1, 0, 0)
    return runner


def prompts() -> list[tuple[int, ...]]:
    draws = random.Random(0)
    return [tuple(draws.randrange(2, VOCAB) for _ in range(TOKENS)) for _ in range(ROWS)]


def tokens_computed(module: torch.nn.Module, compute: Callable[[], object]) -> list[int]:
    """Of each sequence, by each call of the module."""
    seen: list[int] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    compute()
    hook.remove()
    return seen


def last_layer(runner: ModelRunner) -> Any:
    model: Any = runner.model
    return model.base_model.layers[-1]


def prefill(runner: ModelRunner) -> torch.Tensor:
    return runner.prefill([(prompt, np.array([row])) for row, prompt in enumerate(prompts())])


@pytest.mark.parametrize("family", MAKERS)
@torch.inference_mode()
def test_logits_and_cache_are_those_of_the_whole_layer(family: str) -> None:
    runner, whole = runner_of(model_of(MAKERS[family])), model_of(MAKERS[family])
    whole.set_attn_implementation(ATTENTION_NAME)
    cache = KVCache(2, 1024)
    cache.set_write(PrefillWrite(torch.arange(ROWS), torch.arange(ROWS)))
    cache.reserve(ROWS, TOKENS + 1, 0, 0)
    expected = whole(torch.tensor(prompts()), past_key_values=cache, use_cache=True).logits[:, -1]
    torch.testing.assert_close(prefill(runner), expected, atol=1e-5, rtol=1e-5)
    for own, other in zip(runner.cache.slots, cache.slots, strict=True):
        torch.testing.assert_close(own.keys, other.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(own.values, other.values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", MAKERS)
@torch.inference_mode()
def test_the_last_layer_computes_one_token_of_a_prompt(family: str) -> None:
    runner = runner_of(model_of(MAKERS[family]))
    layer = last_layer(runner)
    for module in (layer.mlp, layer.self_attn.q_proj, layer.self_attn.o_proj):
        assert tokens_computed(module, lambda: prefill(runner)) == [1]
    assert tokens_computed(layer.self_attn.k_proj, lambda: prefill(runner)) == [TOKENS]
    assert tokens_computed(layer.mlp, lambda: runner.prefill_chunk(prompts()[0], 0, 4, None)) == [1]


@pytest.mark.parametrize("family", MAKERS)
@torch.inference_mode()
def test_scored_tokens_are_computed_whole(family: str) -> None:
    runner, prompt = runner_of(model_of(MAKERS[family])), prompts()[0]
    layer = last_layer(runner)
    assert tokens_computed(layer.mlp, lambda: runner.logprobs(prompt)) == [TOKENS]
    engine = LLMEngine(model_of(MAKERS[family]))
    computing = engine.prompt_logprobs(GroupRequest("scored", prompt), 1)
    assert tokens_computed(last_layer(engine.runner).mlp, lambda: list(computing)) == [TOKENS - 1]
    logits = model_of(MAKERS[family])(torch.tensor([prompt])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(prompt)[1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(runner.logprobs(prompt)), expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_layer_that_scales_its_parts_is_computed_whole() -> None:
    settings = {"residual_multiplier": 0.5}
    runner, whole = runner_of(model_of(GRANITE, **settings)), model_of(GRANITE, **settings)
    assert tokens_computed(last_layer(runner).mlp, lambda: prefill(runner)) == [TOKENS]
    torch.testing.assert_close(prefill(runner), whole(torch.tensor(prompts())).logits[:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("mistral", {"num_hidden_layers": 1}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1}),
    ],
)
@torch.inference_mode()
def test_a_last_layer_that_attends_to_a_window_is_refused(family: str, settings: dict[str, Any]) -> None:
    runner = runner_of(model_of(MAKERS[family], **settings, sliding_window=4))
    with pytest.raises(ValueError, match="sliding_window"):
        prefill(runner)
