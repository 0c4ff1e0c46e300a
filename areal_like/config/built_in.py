"""What is built in: names that stand for `package.module:thing`, as users name their own.

The plan checks their arguments in the source, without importing anything.
"""

LOSSES = {
    "ppo": "areal_like.algorithms.losses.policy:ppo",
    "importance_sampling": "areal_like.algorithms.losses.policy:importance_sampling",
    "cispo": "areal_like.algorithms.losses.cispo:cispo",
    "dppo": "areal_like.algorithms.losses.dppo:dppo",
    "sapo": "areal_like.algorithms.losses.sapo:sapo",
}
"""Policy losses: functions of `areal_like.algorithms.losses.Inputs`, by name."""

LOSS_KEYS = (
    *("eps_clip", "eps_clip_higher", "c_clip", "ratio"),
    *("behav_imp_weight_cap", "behav_imp_weight_floor", "behav_imp_weight_mode", "behav_imp_weight_level"),
)
"""Keys of `actor` that a built-in loss is given if one of its parameters has the name."""
