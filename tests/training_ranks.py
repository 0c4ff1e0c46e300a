"""One trainer rank of a test that compares ranks: `python -m tests.training_ranks FOLDER OUT`, in torchrun's
environment. Writes what each step says, and from the first rank also the weights."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from areal_like.config.actor import PPOActorConfig
from areal_like.config.norm import NormConfig
from areal_like.config.optimizer import OptimizerConfig
from areal_like.config.train_engine import TrainEngineConfig
from areal_like.observe.timing import Stopwatch
from areal_like.training.actor import Actor
from areal_like.training.batch import Batch, read_batch
from areal_like.training.engine import Engine
from areal_like.training.resume_state import engine_state
from areal_like.training.sequences import Sequences
from areal_like.training.supervised import Supervised
from areal_like.training.world import World, open_world
from tests.training_controller import Groups, batch_frame, trajectory
from tests.training_runs import section

STEPS = 3


def groups_of(step: int) -> Groups:
    """Five prompts: an odd number, so that two ranks get unequal shares; one of them teaches nothing. In the last step
    there is one, and so nothing for the second of two ranks."""
    draw = np.random.default_rng(step)
    return [
        [
            trajectory(
                draw.integers(0, 40, 3 + int(draw.integers(1, 6))).tolist(), 3, 1.0 if group == 4 else draw.random()
            )
            for _ in range(3)
        ]
        for group in range(1 if step == STEPS - 1 else 5)
    ]


def batch_of(step: int, world: World) -> Batch:
    header, blobs = batch_frame(step, groups_of(step), world.rank, world.size)
    return read_batch(header, [memoryview(blob) for blob in blobs])


def actor_steps(folder: Path, world: World) -> tuple[list[dict[str, float]], Engine]:
    """Several updates a step, and normalization of advantages over the whole batch."""
    config = section(
        PPOActorConfig,
        path=str(folder),
        dtype="float32",
        group_size=3,
        ppo_n_minibatches=1,
        use_decoupled_loss=True,
        temperature=1.0,
        max_new_tokens=6,
        kl_ctl=0.0,
        entropy_coef=0.01,
        gradient_checkpointing=False,
        optimizer=section(OptimizerConfig, lr=0.01),
        reward_norm=section(NormConfig, mean_level="group", std_level="group", group_size=3),
        adv_norm=section(NormConfig, mean_level="batch", std_level="batch", group_size=3),
    )
    actor = Actor(Engine(config, "actor", folder, world, seed=1), None, config, seed=1)
    return [actor.step(batch_of(step, world), Stopwatch()) for step in range(STEPS)], actor.engine


def supervised_steps(folder: Path, world: World) -> list[dict[str, float]]:
    config = section(TrainEngineConfig, path=str(folder), dtype="float32", optimizer=section(OptimizerConfig, lr=0.01))
    draw = np.random.default_rng(5)
    lengths = np.array([3, 9, 4, 7, 2])
    sequences = Sequences(draw.integers(0, 40, lengths.sum()).astype(np.int32), np.ones(lengths.sum()), lengths)
    learner = Supervised(Engine(config, "model", folder, world, seed=1), seed=1)
    steps = [learner.step(sequences, np.arange(5), step) for step in range(STEPS)]
    return [*steps, learner.evaluate(sequences, batch_size=2, most=-1)]


def run(folder: Path, out: Path, world: World) -> None:
    steps, engine = actor_steps(folder, world)
    found: dict[str, Any] = {"actor": steps, "supervised": supervised_steps(folder, world)}
    weights = {**dict(engine.export_weights()), **engine_state(engine)}
    if world.is_first:
        out.write_text(json.dumps(found))
        save_file({name: tensor.clone() for name, tensor in weights.items()}, out.with_suffix(".safetensors"))


if __name__ == "__main__":
    everyone = open_world(60)
    run(Path(sys.argv[1]), Path(sys.argv[2]), everyone)
    everyone.close()
    os._exit(0)  # as a trainer ends
