"""Checks of fake data (random tokens)."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem, plural
from launcher.plan.plan import BatchPlan

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

TRAIN, VALID = "train_dataset.fake", "valid_dataset.fake"


def fake_data_problems(config: "BaseExperimentConfig", batch: BatchPlan) -> Iterator[Problem]:
    fake, valid, ranks = config.train_dataset.fake, config.valid_dataset, batch.data_parallel_ranks
    for key, data in ((TRAIN, fake), (VALID, valid.fake if valid is not None else None)):
        if data is not None and data.batch_size < ranks:
            reason = f"{plural(data.batch_size, 'sequence')} for {ranks} ranks; every rank needs at least one"
            yield Problem(f"{key}.batch_size", reason)
    if isinstance(config, GRPOConfig) and valid is not None and valid.fake is not None:
        reason = "evaluation needs correct answers, which random tokens do not have; set it to null"
        yield Problem(VALID, reason)
    if fake is None:
        return
    if batch.total_steps is None:
        yield Problem("total_train_steps", f"is null, and random tokens ({TRAIN}) never end; set it")
    if isinstance(config, GRPOConfig) and fake.batch_size == 1 and _compares(config):
        reason = "advantages compare sequences, and one sequence has no other; use at least 2"
        yield Problem(f"{TRAIN}.batch_size", reason)


def _compares(config: GRPOConfig) -> bool:
    norm = config.actor.reward_norm
    return (norm is not None and norm.mean_level is not None) or any(asdict(config.actor.advantage).values())
