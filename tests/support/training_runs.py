"""Run directories and small models for tests of the trainer: as the launcher writes them, without a launcher."""

import json
import uuid
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from areal_like.config.load import load
from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.observe.timing import Stopwatch
from areal_like.process.identity import Identity
from areal_like.process.run import Run, open_run
from areal_like.training.actor import Actor
from areal_like.training.batch import TrainingBatch
from areal_like.training.engine import TrainEngine
from areal_like.training.world import World, open_world

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ME = Identity("trainer", 0)

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
MODELS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "deepseek_v3": DeepseekV3Config(
        **{**SHAPE, "num_key_value_heads": 4, "head_dim": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=5),
    "gemma3": Gemma3TextConfig(
        **SHAPE, sliding_window=5, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    ),
    "gemma2": Gemma2Config(
        **SHAPE,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
}


def section(cls: Any, **settings: Any) -> Any:
    """A section of a configuration with its defaults, but for `settings`."""
    return cls(**settings)


@cache
def world() -> World:
    """This process as the only rank."""
    return open_world(60)


def model_folder(root: Path, name: str) -> Path:
    """A folder with a random model of a small shape."""
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(MODELS[name])
    model.save_pretrained(root / name)
    return root / name


def make_engine(folder: Path, checkpoint: Path | None = None, **settings: Any) -> TrainEngine:
    """A float32 engine in this process; `settings` are of the section or, where it has them, of its optimizer."""
    known = {field.name for field in fields(TrainEngineConfig)}
    ours = {name: settings.pop(name) for name in list(settings) if name in known}
    optimizer = section(OptimizerConfig, **{"lr": 0.01, "weight_decay": 0.0, **settings})
    plain = {"dtype": "float32", "gradient_checkpointing": False, "optimizer": optimizer}
    config = section(TrainEngineConfig, path=str(folder), **{**plain, **ours})
    return TrainEngine(config, "actor", folder, world(), seed=1, checkpoint=checkpoint)


def weights_of(engine: TrainEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.export_weights()}


MEMORY: list[Path] = []
"""Shared memory of these runs, which have no guardian to remove it: removed after all tests."""


def make_run(directory: Path, experiment: str, *overrides: str) -> Run:
    """A run of a shipped experiment that begins at step 0."""
    loaded = load(EXPERIMENTS / f"{experiment}.yaml", [f"cluster.fileroot={directory}", *overrides])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(yaml.safe_dump({**loaded.values, "trial_name": "r0001"}))
    facts = {
        "experiment": loaded.experiment,
        "run_id": uuid.uuid4().hex[:12],
        "folder": str(directory),
        "cwd": str(directory),
    }
    (directory / "run.json").write_text(json.dumps(facts))
    run = open_run(directory)
    MEMORY.append(run.memory)
    return start_from(run, None, 0)


def train_step(actor: Actor, batch: TrainingBatch) -> dict[str, float]:
    """The actor's part of a step of the training loop."""
    watch = Stopwatch()
    actor.compute_logprobs(batch, watch)
    actor.compute_advantages(batch, watch)
    return actor.update(batch, watch)


def start_from(run: Run, checkpoint: Path | None, step: int, attempt: int = 1) -> Run:
    """Where the next attempt begins."""
    start = {"attempt": attempt, "step": step, "checkpoint": None if checkpoint is None else str(checkpoint)}
    (run.directory / "attempt.json").write_text(json.dumps(start))
    return run


def metrics_of(run: Run) -> list[dict[str, Any]]:
    """The lines that the trainer wrote."""
    return [json.loads(line) for line in (run.metrics / "trainer-0.jsonl").read_text().splitlines()]
