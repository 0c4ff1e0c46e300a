"""The checks of a configuration alone, the same on every machine, in the order of their problems."""

from areal_like.config.checks import agreement
from areal_like.config.checks.registry import Check
from areal_like.config.checks.user_code import user_code_problems
from areal_like.config.problems import Stage

VALUE_CHECKS = (
    Check("keys that repeat another have its value", Stage.INVALID, agreement.copies),
    Check("group sizes are gconfig.n_samples", Stage.INVALID, agreement.group_sizes),
    Check("servers serve the trained model", Stage.INVALID, agreement.served_models),
    Check("lengths of answers", Stage.INVALID, agreement.lengths),
    Check("temperatures", Stage.INVALID, agreement.temperatures),
    Check("stop texts and tokens", Stage.INVALID, agreement.stops),
    Check("bounds of ratios", Stage.INVALID, agreement.clipping),
    Check("penalty of overlong answers", Stage.INVALID, agreement.overlong),
    Check("borders of the curriculum", Stage.INVALID, agreement.curriculum),
    Check("mix of environments", Stage.INVALID, agreement.environments),
    Check("columns of rows", Stage.INVALID, agreement.fields),
    Check("learning-rate schedule", Stage.INVALID, agreement.schedule),
    Check("padding", Stage.INVALID, agreement.padding),
    Check("names of environment variables", Stage.INVALID, agreement.variables),
    Check("step to resume from", Stage.INVALID, agreement.resume),
    Check("path of the reward model", Stage.INVALID, agreement.reward_model),
    Check("value heads", Stage.INVALID, agreement.heads),
    Check("published adapters", Stage.INVALID, agreement.lora),
    Check("saved adapters", Stage.INVALID, agreement.separate_adapter),
    Check("tasks, workflows, rewards and losses by name", Stage.INVALID, user_code_problems),
)
"""Run where a configuration is loaded; they read the resolved values."""
