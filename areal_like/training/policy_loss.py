"""The policy loss that `actor.loss` names: a built-in one, or a function of the user's."""

from typing import Protocol

import torch

from areal_like.algorithms import losses
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.data.user_code import SearchFolders, is_built_in, pick_built_in
from areal_like.training.user_loss import UserLoss

REPORTED_METRICS = {
    "clip_fraction": "train/clip_fraction",
    "taken_out": "train/taken_out",
    "truncated": "train/truncated",
}


class PolicyLoss(Protocol):
    """Maps the inputs of a micro-batch to its loss, a sum."""

    reports: dict[str, str]
    """Statistics that become metrics, per token in the loss: statistic -> metric."""
    needs_proximal: bool
    """Whether later updates need the log-probabilities of the policy at the start of the step."""
    needs_all: bool
    """Whether tokens with advantage 0 affect the loss."""

    def __call__(self, inputs: losses.Inputs) -> losses.Loss: ...


class BuiltInLoss:
    """PPO's loss with the settings of `actor`; `clips` is whether it clips its ratio."""

    def __init__(self, config: PPOActorConfig, has_reference: bool, clips: bool) -> None:
        self._config, self._clips = config, clips
        self._adds_kl = has_reference and config.kl_in == "loss"
        self.reports = REPORTED_METRICS
        self.needs_proximal = config.use_decoupled_loss
        self.needs_all = self._adds_kl or config.entropy_coef > 0

    def __call__(self, inputs: losses.Inputs) -> losses.Loss:
        config = self._config
        return losses.ppo(
            inputs.logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.loss_mask,
            weights=inputs.weights,
            proximal_logprobs=inputs.proximal_logprobs if config.use_decoupled_loss else None,
            eps_clip=config.eps_clip if self._clips else None,
            eps_clip_higher=config.eps_clip_higher,
            c_clip=config.c_clip if self._clips else None,
            behav_imp_weight_cap=config.behav_imp_weight_cap,
            behav_imp_weight_floor=config.behav_imp_weight_floor,
            behav_imp_weight_mode=config.behav_imp_weight_mode,
            behav_imp_weight_level=config.behav_imp_weight_level,
            cu_seqlens=inputs.cu_seqlens,
            ratio_level=config.ratio.level,
            ratio_length_norm=config.ratio.length_norm,
            mask_high=config.ratio.mask_high,
            mask_low=config.ratio.mask_low,
            sequence_mask_low=config.ratio.sequence_mask_low,
            entropy=inputs.entropy,
            entropy_coef=config.entropy_coef,
            reference_logprobs=inputs.reference_logprobs if self._adds_kl else None,
            kl_coef=config.kl_ctl,
            kl_estimator=config.kl_estimator,
        )


CLIPS = {"ppo": True, "importance_sampling": False}
"""Built-in losses, and whether they clip their ratio."""


def policy_loss(config: PPOActorConfig, places: SearchFolders, has_reference: bool, device: torch.device) -> PolicyLoss:
    """`places` are the folders in which the user's code is searched."""
    if is_built_in(config.loss):
        return BuiltInLoss(config, has_reference, pick_built_in("actor.loss", config.loss, CLIPS))
    return UserLoss(config, places, has_reference, device)
