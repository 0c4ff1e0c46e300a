"""The one catalogue of metrics: what each name means, and its unit. A name that is not here cannot be written.

A `*` in a name stands for any text: `reward/part/*` is `reward/part/exact` and all the others.
"""

import re
from functools import cache
from types import MappingProxyType
from typing import NamedTuple


class Metric(NamedTuple):
    """What a name means. The unit is empty for plain numbers."""

    help: str
    unit: str = ""


GROUPS = MappingProxyType(
    {
        "train": "The loss and what it was computed on; one value per step.",
        "critic": "The value model, where there is one; one value per step.",
        "rollout": "What the controller gathered for the step's batch, and what it had to leave out.",
        "reward": "Rewards of the step's samples as the reward functions gave them, before normalization.",
        "offpolicy": "How far the sampling policy and the trained one are apart, before the first update of the step.",
        "perf": "Where the time of a step goes, and how much gets done in it.",
        "eval": "Evaluations. The step is the number of completed steps of the weights that answered.",
    }
)

METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        "train/loss": Metric("Loss of the step, over all ranks and micro-batches"),
        "train/grad_norm": Metric("Norm of the gradient over all parameters, before it is clipped"),
        "train/lr": Metric("Learning rate of the step's last update"),
        "train/clip_fraction": Metric("Share of the tokens whose ratio was held back by the clip", "share"),
        "train/taken_out": Metric(
            "Share of the tokens that did not count because their importance weight or ratio was beyond a limit",
            "share",
        ),
        "train/truncated": Metric("Share of the tokens whose importance weight was held at a limit", "share"),
        "train/own/*": Metric("What a loss of one's own reports, mean over the tokens in the loss"),
        "train/entropy": Metric("Entropy of the policy at the tokens trained on, mean", "nats"),
        "train/kl_ref": Metric(
            "Distance of the policy from the reference model at the tokens trained on, mean", "nats"
        ),
        "train/advantage_std": Metric("Spread of the advantages of the step's samples"),
        "train/updates": Metric("Updates of the optimizer in the step"),
        "train/samples": Metric("Samples in the step's batch"),
        "train/tokens": Metric("Tokens in the step's batch, prompts included", "tokens"),
        "train/loss_tokens": Metric("Tokens that the loss is computed on", "tokens"),
        "train/sequences_without_signal": Metric(
            "Samples whose advantage is zero, so that nothing is learnt from them"
        ),
        "train/accuracy": Metric("Share of the step's pairs whose better answer had the higher score", "share"),
        "train/margin": Metric("How much higher the score of the better answer was, mean over the step's pairs"),
        "train/skipped_updates": Metric("Updates left out in the step because loss or gradient was not finite"),
        "train/overflows": Metric("Updates left out because gradients left the range of float16, and the scale falls"),
        "train/loss_scale": Metric("What losses were multiplied by, so that gradients fit into float16"),
        "train/epoch": Metric("Passes over the training data that are done, in parts", "epochs"),
        "critic/loss": Metric("Loss of the value model: half the squared error of its values, mean over tokens"),
        "critic/explained_variance": Metric(
            "How much of the spread of the returns its values foretold: 1 is all, 0 no more than a constant", "share"
        ),
        "critic/value_mean": Metric("Its values at the tokens trained on, mean"),
        "critic/return_mean": Metric("What they should have been, mean"),
        "critic/clip_fraction": Metric("Share of the tokens whose new value the clip held back", "share"),
        "critic/grad_norm": Metric("Norm of its gradient over all parameters, before it is clipped"),
        "critic/lr": Metric("Learning rate of its last update in the step"),
        "critic/updates": Metric("Updates of its optimizer in the step"),
        "critic/skipped_updates": Metric("Its updates left out in the step because loss or gradient was not finite"),
        "critic/overflows": Metric("Its updates left out because gradients left the range of float16"),
        "critic/loss_scale": Metric("What its losses were multiplied by, so that gradients fit into float16"),
        "rollout/groups": Metric("Groups in the step's batch: prompts with all their samples"),
        "rollout/samples": Metric("Samples in the step's batch"),
        "rollout/answer_tokens_mean": Metric("Length of an answer, mean", "tokens"),
        "rollout/answer_tokens_max": Metric("Length of the longest answer", "tokens"),
        "rollout/truncated_share": Metric("Share of the answers that were cut off by the length limit", "share"),
        "rollout/dropped_stale": Metric("Groups dropped since the step before because their weights were too old"),
        "rollout/dropped_equal": Metric("Groups left out since the step before because all their rewards were equal"),
        "rollout/rejected": Metric("Groups that a workflow or a filter rejected since the step before"),
        "rollout/failed": Metric("Groups given up since the step before, because reward or workflow kept failing"),
        "rollout/requeued": Metric("Groups handed out again since the step before"),
        "rollout/reward_errors": Metric(
            "Rewards that failed since the step before, also those that were had when tried again"
        ),
        "rollout/reward_timeouts": Metric("Of these, those that took longer than reward.timeout_s"),
        "rollout/reward_processes_lost": Metric("Processes of rewards that died or were killed since the step before"),
        "rollout/running": Metric("Groups being generated when the batch was formed"),
        "rollout/ready": Metric("Finished groups that were left for later batches when the batch was formed"),
        "reward/mean": Metric("Mean over the step's samples"),
        "reward/std": Metric("Standard deviation over the step's samples"),
        "reward/min": Metric("Lowest reward of the step"),
        "reward/max": Metric("Highest reward of the step"),
        "reward/part/*": Metric("Mean of one named part of the reward"),
        "reward/groups_without_spread": Metric("Groups whose samples all got the same reward"),
        "offpolicy/logprob_diff_mean": Metric(
            "Difference between the sampler's and the trainer's log-probability of a token, absolute, mean", "nats"
        ),
        "offpolicy/logprob_diff_max": Metric("The same of the token where it is largest", "nats"),
        "offpolicy/kl": Metric(
            "Estimate of the divergence of the sampling policy from the trained one, per token", "nats"
        ),
        "offpolicy/weight_mean": Metric("Importance weight that corrects for the sampler's older weights, mean"),
        "offpolicy/weight_max": Metric("The largest of these weights"),
        "offpolicy/staleness_mean": Metric(
            "Updates between the weights that sampled a token and those trained, mean", "updates"
        ),
        "offpolicy/staleness_max": Metric(
            "The same of the oldest sample; never above rollout.max_head_offpolicyness", "updates"
        ),
        "offpolicy/staleness_share/*": Metric(
            "Share of the tokens that came from weights so many updates old", "share"
        ),
        "perf/step_s": Metric("From the end of the step before to the end of this one", "s"),
        "perf/wait_s": Metric("Of that, waiting for the batch", "s"),
        "perf/values_s": Metric("Of that, values of the batch before the update, where there is a critic", "s"),
        "perf/prepare_s": Metric("Of that, packing the batch and computing advantages", "s"),
        "perf/logprobs_s": Metric(
            "Of that, log-probabilities of the policy before the update, and of the reference", "s"
        ),
        "perf/train_s": Metric("Of that, forward, backward and update", "s"),
        "perf/publish_s": Metric("Of that, writing or copying the new weights for the servers", "s"),
        "perf/critic_s": Metric("Of that, forward, backward and update of the critic", "s"),
        "perf/checkpoint_s": Metric("Of that, writing a checkpoint", "s"),
        "perf/evaluate_s": Metric("Of that, evaluating, where the trainer does it", "s"),
        "perf/tokens_per_s": Metric("Tokens trained on per second of the step", "tokens/s"),
        "perf/samples_per_s": Metric("Samples trained on per second of the step", "samples/s"),
        "perf/memory_gb": Metric("Most memory that the trainer has held: of the GPU, without one of the process", "GB"),
        "perf/threads": Metric("Threads that the trainer computes with"),
        "perf/cpu_s": Metric("CPU time that the trainer took for the step, all threads", "s"),
        "perf/episode_s": Metric("From a prompt to its finished group, mean of those since the step before", "s"),
        "perf/episode_generate_s": Metric("Of that, waiting for answers", "s"),
        "perf/episode_reward_s": Metric("Of that, waiting for rewards", "s"),
        "perf/generate_tokens_per_s": Metric("Tokens generated per second by all servers together", "tokens/s"),
        "perf/generate_busy_s": Metric("Seconds since the update before in which servers were generating, mean", "s"),
        "perf/generate_busy_share": Metric("Share of the time in which servers were generating, mean", "share"),
        "perf/update_stall_s": Metric(
            "How long generation stood still for the new weights, on the slowest server", "s"
        ),
        "perf/update_load_s": Metric("How long the slowest server took to load them, beside generation", "s"),
        "perf/serve_delay_s": Metric("From the publication of the weights until all servers answered with them", "s"),
        "perf/read_back_share": Metric(
            "Share of the new tensors that servers could read back and found right, on the one that could least",
            "share",
        ),
        "eval/score": Metric("Mean of the score over the held-out rows, or of the reward where there is no score"),
        "eval/reward": Metric("Mean reward over the held-out rows"),
        "eval/part/*": Metric("Mean of one named part of the reward over the held-out rows"),
        "eval/loss": Metric("Loss on the held-out rows, where the model is trained on answers or pairs that are given"),
        "eval/accuracy": Metric("Share of the held-out pairs whose better answer gets the higher score", "share"),
        "eval/margin": Metric("How much higher the score of the better answer is, mean over the held-out pairs"),
        "eval/samples": Metric("Answers that were evaluated"),
        "eval/due_step": Metric("Step after which the evaluation fell due"),
        "eval/version_min": Metric("The oldest weights that answered, by the steps that made them"),
        "eval/version_max": Metric("The newest weights that answered; the same for an evaluation of one version"),
        "eval/rows": Metric("Rows that the evaluation took, also those that failed or were rejected"),
        "eval/failed": Metric(
            "Rows without a result, because reward, workflow or server kept failing. They are in no mean; above "
            "evaluator.max_failed_share, together with those rejected, score, reward and parts are null"
        ),
        "eval/rejected": Metric("Rows that the workflow rejected. They are in no mean"),
        "eval/answer_tokens_mean": Metric("Length of an answer, mean", "tokens"),
        "eval/truncated_share": Metric("Share of the answers that were cut off by the length limit", "share"),
    }
)
"""Name or pattern -> what it is, in the order in which the page shows them."""

LINE_FIELDS = ("step", "attempt", "time")
"""What a line has beside its metrics: completed steps, the attempt, and seconds since 1970."""


def find_metric(name: str) -> Metric | None:
    """What the catalogue says of a name; None where it does not know it."""
    found = METRICS.get(name)
    if found is not None and "*" not in name:
        return found
    return next((METRICS[pattern] for pattern, fits in _patterns() if fits.fullmatch(name)), None)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (name, re.compile(re.escape(name).replace(r"\*", r"[^/*]+(?:/[^/*]+)*"))) for name in METRICS if "*" in name
    )
