"""Adapters of tiny models as peft makes them, and peft's own answers to compare with."""

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.weights.batched_lora import ServedAdapter
from areal_like.weights.adapter import publish_adapter, read_peft_folder
from areal_like.weights.probe import Probe

ATTENTION = ["q_proj", "v_proj"]
ALL = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
RUN_ID = "run-1"


def write_adapter(folder: Path, model: Any, seed: int, strength: float = 0.3, **settings: Any) -> Path:
    """A random adapter for a model, which is not changed; with `strength` 0 it has no effect."""
    torch.manual_seed(seed)
    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ALL, **settings})
    adapted = get_peft_model(copy.deepcopy(model), config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=strength) if strength else torch.nn.init.zeros_(parameter)
    adapted.save_pretrained(str(folder))
    return folder


def with_peft(model: Any, folder: Path) -> Any:
    """The model with an adapter, as peft computes it."""
    return PeftModel.from_pretrained(copy.deepcopy(model), folder).eval()


def logprobs_by(model: Any, token_ids: list[int]) -> list[float]:
    """Log-probability of each token after the first."""
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        of_tokens = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    logprobs: list[float] = of_tokens.tolist()
    return logprobs


def loaded(engine: LLMEngine, folder: Path, name: str) -> ServedAdapter:
    adapter = engine.adapters.make(read_peft_folder(folder), name, name)
    engine.adapters.add(adapter)
    return adapter


def published(root: Path, version: int, folder: Path, probe: Probe | None = None, **config: Any) -> dict[str, Any]:
    """The body of an update to an adapter that peft has saved."""
    files = read_peft_folder(folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    made = publish_adapter(root, version, list(tensors.items()), {**files.config, **config}, probe, RUN_ID)
    return {"version": version, "folder": str(made), "probe": None, "transport": "adapter"}
