"""Memory of the embedded engine on a GPU: arithmetic against bytes counted in real updates and steps, and the plan."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_like.config.sections.engines.embedded import EmbeddedConfig
from areal_like.models.model_shape import shape_of
from areal_like.serving.engines.embedded import memory
from areal_like.serving.engines.embedded.auto_values import engine_shape
from areal_like.serving.engines.embedded.core import load_model, model_runner, sampler, scheduler
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.memory import EngineShape, working_bytes
from areal_like.serving.requests import GroupRequest, Sampling
from tests.launcher.plan.test_auto import autos
from tests.launcher.plan.test_memory import QWEN3_06B, QWEN25_15B, model_folder
from tests.support.live_bytes import LiveBytes
from tests.support.planning import GIB, plan_of
from tests.support.recorded_graphs import capture

torch.set_num_threads(1)

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
LARGEST = {
    "feed-forward": {"intermediate_size": 1024},
    "attention": {"num_attention_heads": 32, "num_key_value_heads": 16},
    "hidden": {"hidden_size": 512},
    "vocabulary": {"vocab_size": 16384},
}
PROMPT, SAMPLES, ANSWER, TOKENS = 100, 2, 3, 256


def model_of(sizes: dict[str, Any], dtype: torch.dtype) -> tuple[Qwen3ForCausalLM, EngineShape]:
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes, pad_token_id=None, bos_token_id=None, eos_token_id=None))
    shape = shape_of({"model_type": "qwen3", **sizes})
    assert shape is not None
    return model.to(dtype), engine_shape(shape, dtype.itemsize)


def group(name: str, prompt: int, **sampling: Any) -> GroupRequest:
    return GroupRequest(name, ((*range(1, 51),) * 2)[:prompt], SAMPLES, 0, Sampling(max_new_tokens=ANSWER, **sampling))


class Temporaries(LiveBytes):
    """Bytes of all tensors but those that existed before."""

    def __init__(self, held: list[torch.Tensor]) -> None:
        super().__init__()
        self._held = {tensor.untyped_storage()._cdata for tensor in held}

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._held:
            super()._note(storage)


def held_by(engine: LLMEngine) -> list[torch.Tensor]:
    """Weights and cache."""
    cache = [memory for layer in engine.cache.slots for memory in layer._memory.values()]
    return [*(tensor for _, tensor in engine.weights.tensors()), *cache]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", LARGEST)
def test_temporaries_of_steps_are_those_of_the_plan(part: str, dtype: torch.dtype, monkeypatch) -> None:
    """For several models, in each of which another part takes most."""
    for module in (memory, model_runner, scheduler):
        monkeypatch.setattr(module, "MAX_PREFILL_TOKENS", TOKENS)
    for module in (memory, sampler):
        monkeypatch.setattr(module, "MAX_LOGITS_AT_ONCE", 1 << 16)
    monkeypatch.setattr(sampler, "MAX_PROCESSED_AT_ONCE", 1 << 14)
    monkeypatch.setattr(memory, "GRAPH_BYTES", 0)
    model, shape = model_of(SIZES | LARGEST[part], dtype)
    longest = PROMPT + ANSWER
    engine = LLMEngine(model, 8, 256, 8 * longest, prefill_chunk=80, capture=lambda step: step)
    engine.warm_up()
    with Temporaries(held_by(engine)) as counted:
        engine.generate([group(str(at), 64) for at in range(4)])
        engine.generate([group("long", PROMPT), *(group(str(at), 30, top_p=0.9, top_k=9) for at in range(3))])
    planned = working_bytes(shape, requests=8, samples=SAMPLES, longest=longest, captures=True)
    assert 0.5 * planned < counted.peak <= planned


def test_an_update_takes_a_second_set_of_weights_and_little_else() -> None:
    model, _ = model_of(SIZES, torch.float32)
    engine = LLMEngine(model, 8, 256, 8 * 128)
    weights = sum(tensor.nbytes for _, tensor in engine.weights.tensors())
    new = {name: tensor.clone() for name, tensor in engine.weights.tensors()}
    with Temporaries([*held_by(engine), *new.values()]) as counted:
        for version in (1, 2):
            engine.weights.stage(new)
            engine.swap(version)
    assert weights <= counted.peak <= 1.01 * weights


def test_the_cache_takes_what_the_plan_counts_per_token() -> None:
    model, shape = model_of(SIZES, torch.bfloat16)
    engine = LLMEngine(model, 8, 256, 1024, capture=capture)
    with Temporaries(held_by(engine)) as counted:
        engine.warm_up()
        taken = counted.now
    keys_of_a_layer = 1024 * shape.kv * shape.width
    assert taken == 1024 * shape.cache_bytes_per_token - keys_of_a_layer


def cache_of(*overrides: str, gpus: int = 2) -> tuple[int, str]:
    resolved = autos(plan_of("grpo", "rollout.backend=embedded:d1", *overrides, gpus=gpus))["embedded.kv_cache_tokens"]
    return resolved.value, resolved.reason


def test_auto_leaves_a_gpu_space_for_the_next_weights_and_temporaries(tmp_path) -> None:
    """80 GiB; nine tenths are for weights, twice, for temporaries and the cache."""
    sizes = QWEN25_15B
    model = f"actor.path={model_folder(tmp_path / 'm', sizes)}"
    lengths = ("gconfig.max_tokens=32768", "gconfig.max_new_tokens=30000", "embedded.max_running_requests=2048")
    shape = shape_of(sizes)
    assert shape is not None
    engine = engine_shape(shape, 2)
    samples = 4
    working = working_bytes(engine, 2048, samples, 32768, captures=True)
    for copies, overrides in ((2, ()), (1, ("actor.weight_update_mode=adapter", "actor.use_lora=true"))):
        left = 0.9 * 80 * GIB - copies * 2 * shape.parameters() - working
        tokens, reason = cache_of(model, *lengths, f"gconfig.n_samples={samples}", "actor.dtype=bfloat16", *overrides)
        assert tokens == int(left) // engine.cache_bytes_per_token
        assert "nine tenths of the GPU's memory" in reason and "temporaries" in reason


def test_a_cache_that_does_not_fit_says_what_takes_the_memory(tmp_path) -> None:
    model = f"actor.path={model_folder(tmp_path / 'm', QWEN3_06B | {'hidden_size': 16384, 'intermediate_size': 65536})}"
    tokens, reason = cache_of(model, "actor.dtype=bfloat16", "gconfig.max_tokens=4096")
    assert tokens == 4096 and "does not fit" in reason and "embedded.max_running_requests" in reason


def test_a_server_that_measures_the_memory_leaves_the_same_space() -> None:
    model, shape = model_of(SIZES, torch.bfloat16)
    options: dict[str, Any] = {"seed": 1, "max_running_requests": 8, "context_length": 256}
    config = EmbeddedConfig(**options)
    assert load_model.shape_of(model) == shape
    weights = sum(parameter.nbytes for parameter in model.parameters())
    needed = weights + working_bytes(shape, 8, 16, 256, captures=True)
    free = needed + 2000 * shape.cache_bytes_per_token
    assert load_model.tokens_that_fit(config, model, free, on_gpu=True) == 1000
    assert load_model.tokens_that_fit(config, model, free, on_gpu=False) == free // 2 // load_model.bytes_per_token(
        model
    )
    with pytest.raises(
        ValueError, match=r"^embedded.max_running_requests: .* GiB of temporaries beside the next weights"
    ):
        load_model.tokens_that_fit(config, model, needed, on_gpu=True)
