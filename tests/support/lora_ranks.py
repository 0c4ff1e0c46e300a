"""One trainer rank of a test of adapters on several ranks. Writes the results of each update and of the reference,
and from the first rank also all weights: merged, and of the adapter alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.training.engine import TrainEngine
from areal_like.training.reference import BaseModelReference
from areal_like.training.sequences import Sequences
from areal_like.training.world import World
from tests.support.training_runs import section


def run(world: World, folder: str, out: str) -> None:
    """Plain SGD, so that rounding errors stay small; the reference is computed before the first update."""
    optimizer = section(OptimizerConfig, type="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
    lora = {"use_lora": True, "lora_rank": 4, "lora_modules_to_save": ["lm_head"]}
    config = section(TrainEngineConfig, path=folder, dtype="float32", optimizer=optimizer, **lora)
    draw = np.random.default_rng(5)
    lengths = np.array([3, 9, 4, 7, 2])
    sequences = Sequences(draw.integers(0, 40, lengths.sum()).astype(np.int32), np.ones(lengths.sum()), lengths)
    engine = TrainEngine(config, "model", Path(folder), world, seed=1)
    reference = BaseModelReference(engine, config, "ref")
    rows = np.arange(5)[world.rank :: world.size]

    def logprobs(model: Any) -> float:
        values = model.logprobs(model.micro_batches(sequences, rows), 1.0)
        return world.sum([float(sum(each.double().sum() for each in values))])[0]

    before = logprobs(reference)
    steps = []
    for step in range(5):
        part = engine.accumulate(engine.micro_batches(sequences, rows), lambda _, result, entropy: -result.sum() / 20)
        steps.append(engine.step(step, part))
    result = {"steps": steps, "before": before, "reference": logprobs(reference), "after": logprobs(engine)}
    weights = {**dict(engine.export_weights()), **dict(engine.export_weights(adapter_only=True))}
    if world.is_first:
        Path(out).write_text(json.dumps(result))
        save_file({name: tensor.clone() for name, tensor in weights.items()}, Path(out).with_suffix(".safetensors"))
