"""The checks of a configuration alone, the same on every machine, in the order of their problems."""

from typing import TYPE_CHECKING

from areal_like.config.allocation.machine import Machine
from areal_like.config.allocation.models import allocate
from areal_like.config.checks import agreement, environments, key_rules, row_prompts, training
from areal_like.config.checks.agent import agent_problems
from areal_like.config.checks.benchmarks import benchmark_code, benchmarks, evaluated_rows, evaluation_servers
from areal_like.config.checks.no_effect import no_effect_problems
from areal_like.config.checks.registry import Check, run_checks
from areal_like.config.checks.rewards import reward_problems
from areal_like.config.checks.user_code import user_code_problems
from areal_like.config.dialects import areal
from areal_like.config.problems import ConfigError, Problem, Stage

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def impossible_allocation(config: "BaseExperimentConfig", machine: Machine) -> list[Problem]:
    return allocate(config, machine)[1]


VALUE_CHECKS = (
    Check("keys that repeat another have its value", Stage.INVALID, key_rules.differing_copies),
    Check("group sizes are gconfig.n_samples", Stage.INVALID, agreement.group_sizes),
    Check("servers serve the trained model", Stage.INVALID, agreement.served_models),
    Check("lengths of answers", Stage.INVALID, agreement.lengths),
    Check("temperatures", Stage.INVALID, agreement.temperatures),
    Check("stop texts and tokens", Stage.INVALID, agreement.stops),
    Check("bounds of ratios", Stage.INVALID, agreement.clipping),
    Check("penalty of overlong answers", Stage.INVALID, agreement.overlong),
    Check("borders of the curriculum", Stage.INVALID, agreement.curriculum),
    Check("environments", Stage.INVALID, environments.environments),
    Check("columns of rows", Stage.INVALID, agreement.fields),
    Check("revisions of datasets", Stage.INVALID, agreement.revisions),
    Check("templates of prompts", Stage.INVALID, row_prompts.prompt_templates),
    Check("how answers are found", Stage.INVALID, row_prompts.answer_sources),
    Check("learning-rate schedule", Stage.INVALID, agreement.schedule),
    Check("padding", Stage.INVALID, agreement.padding),
    Check("names of environment variables", Stage.INVALID, agreement.variables),
    Check("step to resume from", Stage.INVALID, agreement.resume),
    Check("rewards by name or as a sum", Stage.INVALID, reward_problems),
    Check("value heads", Stage.INVALID, agreement.heads),
    Check("published adapters", Stage.INVALID, agreement.lora),
    Check("saved adapters", Stage.INVALID, agreement.separate_adapter),
    Check("tasks, workflows, rewards and losses by name", Stage.INVALID, user_code_problems),
    Check("programs of agents", Stage.INVALID, agent_problems),
    Check("benchmarks", Stage.INVALID, benchmarks),
    Check("rows of evaluations", Stage.INVALID, evaluated_rows),
    Check("servers for evaluations", Stage.INVALID, evaluation_servers),
    Check("tasks and rewards of benchmarks by name", Stage.INVALID, benchmark_code),
    Check("tasks, rewards and workflows of environments by name", Stage.INVALID, environments.environment_code),
)
"""Run where a configuration is loaded; they read the resolved values."""

ALLOCATION_CHECKS = (Check("devices for the engines", Stage.INVALID, impossible_allocation),)
"""Run where a configuration is loaded, after its values are known to be valid one by one."""

START_CHECKS = (
    *areal.CHECKS,
    Check("steps to train, or something to evaluate", Stage.CANNOT_START, training.nothing_to_do),
    Check("models with an optimizer", Stage.CANNOT_START, training.frozen_models),
    Check("rows of the right type", Stage.CANNOT_START, training.row_types),
    Check("sampling that the trainer can reproduce", Stage.CANNOT_START, training.mismatched_sampling),
    Check("groups of several answers", Stage.CANNOT_START, training.groups_of_one),
    Check("servers that load weights", Stage.CANNOT_START, training.openai_services),
    Check("trainers divided by data", Stage.CANNOT_START, training.split_models),
    Check("servers with all layers", Stage.CANNOT_START, training.served_first_layers),
    Check("groups of one prompt", Stage.CANNOT_START, training.group_sizes),
    Check("one group baseline", Stage.CANNOT_START, training.group_baselines),
    Check("values that their keys refuse", Stage.CANNOT_START, key_rules.refused_values),
)
"""Run where a run is planned, started, and in a trainer, whichever machine it is."""

NO_EFFECT_CHECKS = (
    Check("values that their keys report", Stage.NO_EFFECT, key_rules.unread_values),
    Check("values that depend on others", Stage.NO_EFFECT, no_effect_problems),
)


def refuse_config(config: "BaseExperimentConfig") -> None:
    """For a trainer, which may have been started without a plan: raises ConfigError with what a start refuses on every
    machine."""
    if problems := run_checks(START_CHECKS, {"config": config}, Stage.CANNOT_START):
        raise ConfigError(problems)
