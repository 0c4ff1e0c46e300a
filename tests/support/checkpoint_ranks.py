"""The work of every trainer rank in a test of checkpoints.

Each job is JSON with the folder of a `run`, and how many `steps` it is trained to. A job goes on from where its run
begins, and writes a checkpoint after its last step: `beside` another step.
"""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import peft  # noqa: F401 (it takes seconds, and is imported once for all ranks)

from areal_like.process.checkpoint_files import hash_blocks
from areal_like.process.errors import TimedOut
from areal_like.process.identity import Identity
from areal_like.process.run import Run, open_run
from areal_like.training import checkpoint_check
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.engine_snapshot import EngineSnapshot
from areal_like.training.main import load_trained_engine
from areal_like.training.progress import TrainingProgress
from areal_like.training.rank_vote import RankVote
from areal_like.training.sequences import Sequences
from areal_like.training.supervised import SupervisedLearner
from areal_like.training.world import World


def batch_of(step: int) -> Sequences:
    """Five sequences: no number of ranks has equal shares of them."""
    draw = np.random.default_rng(step)
    lengths = draw.integers(2, 12, 5)
    ids = draw.integers(0, 40, lengths.sum()).astype(np.int32)
    return Sequences(ids, np.ones(lengths.sum()), lengths)


def train(run: Run, steps: int, world: World, beside: bool = False) -> None:
    start = run.start_point()
    engine = load_trained_engine(run, run.config.model, "model", world)
    checkpoints, progress = (
        CheckpointManager(run, world, 100),
        TrainingProgress(run, Identity("trainer", world.rank), world),
    )
    learner = SupervisedLearner(engine, seed=1)
    engine.set_schedule(10)
    checkpoints.resume({"model": engine}, progress)
    for step in range(start.step, steps):
        learner.step(batch_of(step), step)
    checkpoints.write(steps, CheckpointPurpose(True, True), {"model": engine}, progress)
    for step in range(steps, steps + 3 if beside else steps):
        learner.step(batch_of(step), step)
    checkpoints.wait()


def run(world: World, *jobs: str) -> None:
    hashed: list[str] = []

    def noted(file: Path) -> Any:
        hashed.append(str(file))
        return hash_blocks(file)

    setattr(checkpoint_check, hash_blocks.__name__, noted)
    for job in map(json.loads, jobs):
        train(open_run(Path(job["run"])), job["steps"], world, beside=True)
        Path(job["run"], f"hashed-{world.rank}.json").write_text(json.dumps(hashed))
        hashed.clear()
        world.barrier()


def leaves(world: World) -> None:
    """The second rank ends between two votes."""
    vote = RankVote(world, 30, "actor.dist_timeout_s")
    vote.sum(0, "that it is there")
    if world.is_first:
        try:
            vote.sum(0, "that it is still there")
        except TimedOut as failure:
            text = str(failure)
        else:
            raise AssertionError("no error")
        assert "actor.dist_timeout_s: trainer/1 did not report within 30 s that it is still there" in text, text
    os._exit(0)


def stuck(world: World, directory: str) -> None:
    """The disk of the second rank hangs until the first one no longer waits for it."""
    run, left = open_run(Path(directory)), Path(directory, "left")
    gave_up = threading.Event()

    def hang(*_: Any) -> None:
        until = time.monotonic() + 20
        while not left.exists():
            if time.monotonic() > until:
                gave_up.set()
                return
            time.sleep(0.05)

    if not world.is_first:
        setattr(EngineSnapshot, EngineSnapshot.write_resume.__name__, hang)
    try:
        train(run, 0, world)
    except TimedOut as failure:
        text = str(failure)
    else:
        raise AssertionError("no error")
    if world.is_first:
        assert "that it wrote its part of a checkpoint" in text, text
        assert "model.dist_timeout_s: trainer/1 did not report within 1" in text, text
        left.touch()
    assert not gave_up.is_set(), "the first rank still waited"
