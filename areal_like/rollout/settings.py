"""Settings of the rollout loop, taken from the configuration."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

import xxhash

from areal_like.config.allocation.grammar import parse_server
from areal_like.config.allocation.models import num_evaluators, uses_api
from areal_like.config.conversations import conversations_per_sample
from areal_like.config.dotted_path import value_of
from areal_like.config.experiment import GRPOConfig
from areal_like.data.votes import VoteRule, vote_rule
from areal_like.process.patience import SilenceLimits, silence_of_servers
from areal_like.rollout.curriculum.settings import CurriculumSettings, curriculum_settings
from areal_like.rollout.evaluation.evaluated_rows import EvaluatedRows, evaluated_rows
from areal_like.rollout.lease_limit import lease_limit_s
from areal_like.rollout.sampling import sampling_params

PENDING_PER_CONCURRENT = 16
MAKES_ANSWERS = (
    *("gconfig", "workflow", "agent", "reward", "environments", "chat_template_args"),
    *("rollout.mask_env_responses", "rollout.trajectory_strategy"),
)
"""What decides how answers are generated and scored, and what is trained on of them."""


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """`max_staleness` is 0 in synchronous mode."""

    seed: int
    sampling_seed: int
    batch_size: int
    n_samples: int
    synchronous: bool
    max_staleness: int
    max_concurrent: int
    max_pending: int
    """Most groups running or ready at the same time."""
    request_retries: int
    lease_limit_s: float
    silence: SilenceLimits = field(default_factory=SilenceLimits)
    num_servers: int
    schedule_policy: str
    dynamic_sampling: bool
    refill: bool
    oversampling_factor: float
    sampling: dict[str, Any]
    answers: Mapping[str, str] = field(default_factory=dict)
    """The hash of each of MAKES_ANSWERS."""
    vote_rule: VoteRule = field(default_factory=VoteRule)
    """Which samples count in the baseline of their group."""
    agent_stats: tuple[str, ...] = ()
    """Names in the `metrics` of trajectories whose statistics are logged."""
    shuffle: bool = True
    drop_last: bool = True
    total_epochs: int = 1
    max_steps: int | None = None
    max_samples: int | None = None
    conversations_per_sample: int = 1
    """As they count for `max_samples`."""
    evaluated: tuple[EvaluatedRows, ...] = ()
    """What is evaluated; empty: nothing."""
    evaluates_base_model: bool = True
    """Whether the weights before the first step are evaluated."""
    num_evaluators: int = 0
    """Servers for evaluations alone, in addition to `num_servers`; 0: evaluations share those."""
    evaluation_pin: bool = False
    """Whether evaluations between the first and the last step use a single version too."""
    evaluation_max_failed_share: float = 1.0
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)


def rollout_settings(config: GRPOConfig) -> RolloutSettings:
    rollout, data, evaluator = config.rollout, config.train_dataset, config.evaluator
    synchronous = not config.async_training or rollout.max_head_offpolicyness == 0
    batch_size = rollout.consumer_batch_size
    max_concurrent = rollout.max_concurrent_rollouts or batch_size
    evaluated = evaluated_rows(config, max_concurrent)
    evaluated_samples = max((each.concurrent * each.n_samples for each in evaluated), default=0)
    return RolloutSettings(
        seed=config.seed,
        sampling_seed=config.seed if config.gconfig.seed is None else config.gconfig.seed,
        batch_size=batch_size,
        n_samples=config.gconfig.n_samples,
        synchronous=synchronous,
        max_staleness=0 if synchronous else rollout.max_head_offpolicyness,
        max_concurrent=max_concurrent,
        max_pending=max(rollout.queue_size or PENDING_PER_CONCURRENT * max_concurrent, batch_size),
        # Requests to a service are retried by their client, which waits in between.
        request_retries=0 if uses_api(config) else rollout.request_retries,
        lease_limit_s=lease_limit_s(
            config,
            max_concurrent * config.gconfig.n_samples + evaluated_samples,
            max(config.gconfig.n_samples, *(each.n_samples for each in evaluated), 1),
        ),
        silence=silence_of_servers(config),
        num_servers=num_servers(config),
        schedule_policy=rollout.schedule_policy,
        dynamic_sampling=config.actor.dynamic_sampling,
        refill=rollout.refill,
        oversampling_factor=rollout.oversampling_factor,
        vote_rule=vote_rule(config.actor),
        agent_stats=tuple(config.actor.log_agent_stats_keys) if config.actor.log_agent_stats else (),
        sampling=sampling_params(config.gconfig),
        answers={name: _hash_of(value_of(config, name)) for name in MAKES_ANSWERS},
        shuffle=data.shuffle,
        drop_last=data.drop_last,
        total_epochs=config.total_train_epochs,
        max_steps=config.total_train_steps,
        max_samples=config.total_train_n_seqs,
        conversations_per_sample=conversations_per_sample(config),
        evaluated=evaluated,
        num_evaluators=num_evaluators(config),
        evaluates_base_model=evaluator.eval_base_model or config.total_train_steps == 0,
        evaluation_pin=evaluator.pin or config.saver.best is not None,
        evaluation_max_failed_share=evaluator.max_failed_share,
        curriculum=curriculum_settings(config),
    )


def _hash_of(decisive: Any) -> str:
    values = asdict(decisive) if is_dataclass(decisive) and not isinstance(decisive, type) else decisive
    return xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True, default=str).encode())


def num_servers(config: GRPOConfig) -> int:
    """Servers that the run starts, or those of `rollout.server_addresses`."""
    if config.rollout.server_addresses:
        return len(config.rollout.server_addresses)
    dims = parse_server(config.rollout.backend).dims
    return dims.data if dims else 1


@dataclass(frozen=True)
class RunLength:
    """The length of a run, from the number of its rows."""

    rows: int
    steps_per_epoch: int
    rows_per_epoch: int
    total_steps: int


def run_length(settings: RolloutSettings, rows: int) -> RunLength:
    batch = settings.batch_size
    if rows < 1:
        raise ValueError("train_dataset: there are no rows to train on; name a dataset or a task that has rows")
    if settings.max_steps == 0:
        return RunLength(rows, 1, rows, 0)
    steps = rows // batch if settings.drop_last else math.ceil(rows / batch)
    if steps == 0:
        raise ValueError(
            f"train_dataset.batch_size: a batch needs {batch} rows, and the data has only {rows}; lower it, or set "
            "train_dataset.drop_last=false"
        )
    limits = [settings.total_epochs * steps]
    if settings.max_steps is not None:
        limits.append(settings.max_steps)
    if settings.max_samples is not None:
        of_row = settings.n_samples * settings.conversations_per_sample
        limits.append(math.ceil(settings.max_samples / (batch * of_row)))
    return RunLength(rows, steps, steps * batch if settings.drop_last else rows, min(limits))
