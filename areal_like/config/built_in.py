"""What is built in: names that stand for `package.module:thing`, as users name their own.

The plan checks their arguments in the source, without importing anything.
"""

from typing import NamedTuple

BUILT_IN = {
    "task": {
        "addition": "areal_like.data.tasks.addition:Addition",
        "countdown": "areal_like.data.tasks.countdown:Countdown",
        "counting": "areal_like.data.tasks.counting:Counting",
        "programs": "areal_like.data.tasks.programs:Programs",
        "reasoning_gym": "areal_like.data.tasks.reasoning_gym:ReasoningGym",
        "reversing": "areal_like.data.tasks.reversing:Reversing",
        "sorting": "areal_like.data.tasks.sorting:Sorting",
        "sums": "areal_like.data.tasks.sums:Sums",
        "word_problems": "areal_like.data.tasks.word_problems:WordProblems",
    },
    "workflow": {
        "agent": "areal_like.rollout.episodes.workflows.agent:Agent",
        "multi_turn": "areal_like.rollout.episodes.workflows.multi_turn:MultiTurn",
        "single_turn": "areal_like.rollout.episodes.workflows.single_turn:SingleTurn",
        "text_environment": "areal_like.rollout.episodes.workflows.text_environment:PlayEnvironment",
        "tool_integrated": "areal_like.rollout.episodes.workflows.tool_integrated:ToolIntegrated",
        "tools": "areal_like.rollout.episodes.workflows.tools:Tools",
    },
    "reward": {
        "addition": "areal_like.data.tasks.addition:addition_reward",
        "choice": "areal_like.rollout.episodes.rewards.choice:ChoiceReward",
        "code": "areal_like.rollout.episodes.rewards.code.reward:CodeReward",
        "countdown": "areal_like.data.tasks.countdown:countdown_reward",
        "exact": "areal_like.rollout.episodes.rewards.exact:ExactReward",
        "format": "areal_like.rollout.episodes.rewards.format:FormatReward",
        "judge": "areal_like.rollout.episodes.rewards.judge:JudgeReward",
        "json_schema": "areal_like.rollout.episodes.rewards.json_schema:JsonSchemaReward",
        "length": "areal_like.rollout.episodes.rewards.length:LengthReward",
        "math": "areal_like.rollout.episodes.rewards.math:MathReward",
        "model": "areal_like.rollout.episodes.rewards.model:ModelReward",
        "numeric": "areal_like.rollout.episodes.rewards.numeric:NumericReward",
        "random": "areal_like.rollout.episodes.rewards.random:RandomReward",
        "regex": "areal_like.rollout.episodes.rewards.regex:RegexReward",
    },
    "sampler": {},
    "gate": {
        "advantage_range": "areal_like.rollout.curriculum.admission:AdvantageRange",
        "mean_reward": "areal_like.rollout.curriculum.admission:MeanReward",
    },
    "actor.loss": {
        "ppo": "areal_like.algorithms.losses.policy:ppo",
        "importance_sampling": "areal_like.algorithms.losses.policy:importance_sampling",
        "cispo": "areal_like.algorithms.losses.cispo:cispo",
        "dppo": "areal_like.algorithms.losses.dppo:dppo",
        "sapo": "areal_like.algorithms.losses.sapo:sapo",
    },
}
"""Tasks, workflows and rewards by `task.name` and so on, gates by `curriculum.gates`, and policy losses by
`actor.loss`. Samplers are the user's own: those that come with the package are `curriculum.type`."""

PACKAGES = {
    "task": {"reasoning_gym": ("reasoning_gym", "reasoning-gym")},
    "reward": {"json_schema": ("jsonschema", "jsonschema"), "math": ("math_verify", "math-verify")},
}
"""What is built in and needs a further package: its module, and its name on PyPI."""

SANDBOXED = ("code",)
"""Rewards that run what a model wrote, in the sandbox of `reward.sandbox`."""

TASKS, LOSSES = BUILT_IN["task"], BUILT_IN["actor.loss"]


class TaskSize(NamedTuple):
    """The training rows of a task without arguments, and the most characters of a prompt with its answer."""

    num_rows: int
    characters: int


TASK_SIZES = {
    "addition": TaskSize(8036, 9),
    "countdown": TaskSize(1567, 20),
    "counting": TaskSize(8002, 25),
    "programs": TaskSize(2747, 56),
    "reasoning_gym": TaskSize(750, 160),
    "reversing": TaskSize(7988, 25),
    "sorting": TaskSize(7200, 22),
    "sums": TaskSize(7928, 12),
    "word_problems": TaskSize(7559, 45),
}
"""For the plan, which takes no time to make the rows. A task of a package has at least so many, and none is longer."""

LOSS_KEYS = (
    *("eps_clip", "eps_clip_higher", "c_clip", "ratio"),
    *("behav_imp_weight_cap", "behav_imp_weight_floor", "behav_imp_weight_mode", "behav_imp_weight_level"),
)
"""Keys of `actor` that a built-in loss is given if one of its parameters has the name."""
