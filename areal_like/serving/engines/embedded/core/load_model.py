"""Loads the model that the section `embedded` names, and makes the engine for it."""

import logging
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from areal_like.config.sections.engines.base import EngineKeys
from areal_like.config.sections.engines.embedded import EmbeddedConfig
from areal_like.config.sections.engines.keys import EMBEDDED as KEYS
from areal_like.serving.engines.embedded.core.decode_graphs import CudaCapture
from areal_like.serving.engines.embedded.core.kv_cache import BLOCK_SIZE
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.engines.embedded.memory import EngineShape, working_bytes

MEMORY_SHARE = 0.5
"""Of the memory that is free once the model is loaded: the most that the KV cache takes."""
ASSUMED_SAMPLES = 16
"""Of a group."""

log = logging.getLogger(__name__)


def load_engine(
    config: EmbeddedConfig, folder: Path, trust_remote_code: bool = False, keys: EngineKeys = KEYS
) -> LLMEngine:
    """`folder` holds the model of `config.model_path`."""
    if isinstance(config.threads, int):
        torch.set_num_threads(config.threads)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("embedded.device: torch finds no GPU here for cuda; set embedded.device=cpu")
    device = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(folder, config.dtype, device, trust_remote_code)
    if isinstance(config.kv_cache_tokens, int):
        tokens = config.kv_cache_tokens
    else:
        tokens = tokens_that_fit(config, model, free_memory(model.device), model.device.type == "cuda")
        log.info("embedded.kv_cache_tokens: %d, which fit into half of the free memory", tokens)
    engine = LLMEngine(
        model,
        config.max_running_requests,
        config.context_length,
        tokens,
        LazyTokenizer(folder),
        capture=CudaCapture(model.device) if captures_steps(config, model.device) else None,
        keys=keys,
    )
    engine.warm_up()
    return engine


def captures_steps(config: EmbeddedConfig, device: torch.device) -> bool:
    return device.type == "cuda" and config.enforce_eager is not True


def load_model(folder: Path, dtype: str, device: str, trust_remote_code: bool = False) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    window = getattr(text, "sliding_window", None) if not getattr(text, "layer_types", None) else None
    if kinds or window:
        raise ValueError(
            f"embedded.model_path: {folder} has layers of kind {', '.join(sorted(kinds)) or 'sliding_attention'}, "
            "and the embedded engine has full attention only; take another rollout.backend"
        )
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, trust_remote_code=trust_remote_code
    )
    assert isinstance(model, PreTrainedModel)
    torch.nn.Module.to(model.requires_grad_(False), device)
    return model


def tokens_that_fit(config: EmbeddedConfig, model: PreTrainedModel, free: int, on_gpu: bool) -> int:
    """Of the KV cache. A GPU must also hold the next weights and the temporaries of a step."""
    if not on_gpu:
        return int(MEMORY_SHARE * free) // bytes_per_token(model)
    text, shape = model.config.get_text_config(), shape_of(model)
    longest = config.context_length or text.max_position_embeddings
    working = working_bytes(
        shape, config.max_running_requests, ASSUMED_SAMPLES, longest, config.enforce_eager is not True
    )
    left = free - sum(parameter.nbytes for parameter in model.parameters()) - working
    if left < shape.cache_bytes_per_token * BLOCK_SIZE:
        need = f"{config.max_running_requests} sequences of up to {longest} tokens need {working / 2**30:.1f} GiB"
        raise ValueError(
            f"embedded.max_running_requests: {free / 2**30:.1f} GiB of the GPU are free, and {need} of temporaries "
            "beside the next weights; lower it, or embedded.context_length"
        )
    return int(MEMORY_SHARE * left) // shape.cache_bytes_per_token


def shape_of(model: PreTrainedModel) -> EngineShape:
    text = model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return EngineShape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        query=text.num_attention_heads * size,
        kv=text.num_key_value_heads * size,
        head_dim=size,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocab=text.vocab_size,
        width=model.dtype.itemsize,
    )


def bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of keys and values."""
    text = model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * text.num_key_value_heads * size * model.dtype.itemsize)


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    raise OSError("/proc/meminfo lacks the available memory; set embedded.kv_cache_tokens")
