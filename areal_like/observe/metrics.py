"""Catalogue of metrics: name, description and unit. A name that is not listed cannot be written.

A `*` in a name stands for any text: `reward/part/*` includes `reward/part/exact`.
"""

import re
from functools import cache
from types import MappingProxyType
from typing import NamedTuple


class Metric(NamedTuple):
    """Description of a name. The unit is empty for plain numbers."""

    help: str
    unit: str = ""


GROUPS = MappingProxyType(
    {
        "train": "Loss, gradient and optimizer; one value per step.",
        "critic": "The value model, if there is one; one value per step.",
        "rollout": "The step's batch, and groups that were left out.",
        "reward": "Rewards of the step's answers, as the reward functions returned them, before normalization. A "
        "conversation is one answer, however many sequences are trained on for it.",
        "env": "Groups of the step's batch by environment (`environments.train`): `env/NAME/reward`.",
        "curriculum": "Rows by the difficulty that their latest group showed, where `curriculum.type` draws them.",
        "offpolicy": "Difference between the sampling policy and the trained one, before the step's first update.",
        "perf": "Time, throughput and memory of a step.",
        "eval": "Evaluations. Their step is the number of completed steps of the weights that answered. The metrics of "
        "a benchmark have its name after `eval/`: `eval/gsm8k/score`.",
    }
)

METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        "train/loss": Metric("Loss of the step, over all ranks and micro-batches"),
        "train/grad_norm": Metric("Norm of the gradient over all parameters, before it is clipped"),
        "train/lr": Metric("Learning rate of the step's last update"),
        "train/clip_fraction": Metric("Share of the tokens whose ratio was clipped", "share"),
        "train/taken_out": Metric(
            "Share of the tokens left out of the loss because their importance weight, ratio or change of probability "
            "was beyond a limit",
            "share",
        ),
        "train/truncated": Metric("Share of the tokens whose importance weight was truncated", "share"),
        "train/own/*": Metric(
            "Statistics that only the selected loss reports, such as a user's own, mean over the tokens in the loss"
        ),
        "train/entropy": Metric("Entropy of the policy at the tokens trained on, mean", "nats"),
        "train/kl_ref": Metric(
            "Distance of the policy from the reference model at the tokens trained on, mean", "nats"
        ),
        "train/updates": Metric("Optimizer updates in the step"),
        "train/samples": Metric("Sequences in the step's batch. A conversation may be several"),
        "train/tokens": Metric("Tokens in the step's batch, prompts included", "tokens"),
        "train/loss_tokens": Metric("Tokens in the loss", "tokens"),
        "train/sequences_without_signal": Metric("Sequences whose advantage is zero: they contribute no gradient"),
        "train/accuracy": Metric("Share of the step's pairs whose better answer had the higher score", "share"),
        "train/margin": Metric("Score of the better answer minus that of the worse, mean over the step's pairs"),
        "train/skipped_updates": Metric("Updates skipped in the step because loss or gradient was not finite"),
        "train/overflows": Metric("Updates skipped because gradients overflowed float16; the loss scale is lowered"),
        "train/loss_scale": Metric("Factor on the losses, so that gradients fit into float16"),
        "train/compiled_layers": Metric(
            "Layers that run compiled, where `compile` is set; 0 after a warning that they cannot"
        ),
        "train/epoch": Metric("Completed passes over the training data, with fractions", "epochs"),
        "critic/loss": Metric("Loss of the value model: half the squared error of its values, mean over tokens"),
        "critic/explained_variance": Metric(
            "Share of the variance of the returns that its values predicted: 1 is all, 0 as much as a constant", "share"
        ),
        "critic/value_mean": Metric("Its values at the tokens trained on, mean"),
        "critic/return_mean": Metric("Returns at these tokens, the targets of its values, mean"),
        "critic/clip_fraction": Metric("Share of the tokens whose new value was clipped", "share"),
        "critic/grad_norm": Metric("Norm of its gradient over all parameters, before it is clipped"),
        "critic/lr": Metric("Learning rate of its last update in the step"),
        "critic/updates": Metric("Updates of its optimizer in the step"),
        "critic/skipped_updates": Metric("Its updates skipped in the step because loss or gradient was not finite"),
        "critic/overflows": Metric("Its updates skipped because gradients overflowed float16"),
        "critic/compiled_layers": Metric("Its layers that run compiled, where `compile` is set"),
        "critic/loss_scale": Metric("Factor on its losses, so that gradients fit into float16"),
        "rollout/groups": Metric("Groups in the step's batch: prompts with all their samples"),
        "rollout/samples": Metric("Sequences in the step's batch. A conversation may be several"),
        "rollout/answers": Metric("Answers in the step's batch. A conversation is one"),
        "rollout/conversations": Metric("Conversations in the step's batch, where the workflow holds any"),
        "rollout/turns_mean": Metric("Answers of the model in a conversation, mean"),
        "rollout/turns_max": Metric("Most answers of the model in a conversation"),
        "rollout/turn_tokens_mean": Metric("Length of one answer of the model in a conversation, mean", "tokens"),
        "rollout/tool_calls_mean": Metric("Calls of tools in a conversation, mean, where the workflow has tools"),
        "rollout/tool_errors_mean": Metric(
            "Of these, those that no tool could answer: wrong calls, and tools that raised or took too long; mean. "
            "Of an agent, only wrong calls are known"
        ),
        "rollout/template_breaks": Metric(
            "How often a chat template or agent rewrote earlier turns of a conversation, so that a new sequence began"
        ),
        "rollout/answer_tokens_mean": Metric(
            "Length of an answer, mean; of a conversation, all that the model generated", "tokens"
        ),
        "rollout/answer_tokens_max": Metric("Length of the longest answer", "tokens"),
        "rollout/truncated_share": Metric(
            "Share of the answers that were cut off by the length limit. A conversation is one, and is cut off if one "
            "of its sequences is",
            "share",
        ),
        "rollout/dropped_stale": Metric("Groups dropped since the previous step because their weights were too old"),
        "rollout/dropped_equal": Metric("Groups left out since the previous step because all their rewards were equal"),
        "rollout/dropped_too_long": Metric(
            "Training rows found too long (train_dataset.max_length) since the previous step; each counts once"
        ),
        "rollout/dropped_difficulty": Metric(
            "Groups left out since the previous step because a limit or a gate of `curriculum` refused them"
        ),
        "rollout/rejected": Metric("Groups that a workflow or a filter rejected since the previous step"),
        "rollout/failed": Metric(
            "Groups left out since the previous step because reward or workflow failed in every attempt"
        ),
        "rollout/error_groups": Metric(
            "Of these, those that failed with the most frequent error, whose text is `rollout/error`"
        ),
        "rollout/requeued": Metric("Groups queued again since the previous step"),
        "rollout/reward_errors": Metric(
            "Reward calls that failed since the previous step, also those that succeeded when repeated"
        ),
        "rollout/reward_timeouts": Metric("Of these, those that took longer than reward.timeout_s"),
        "rollout/reward_processes_lost": Metric("Reward processes that died or were killed since the previous step"),
        "rollout/infrastructure_errors": Metric(
            "Failures of infrastructure that rewards and workflows reported since the previous step"
        ),
        "rollout/environment_starts": Metric(
            "Processes of text environments and of those of verifiers that were started since the previous step; only "
            "if there are some"
        ),
        "rollout/environment_failures": Metric(
            "Calls of text environments, and groups of those of verifiers, that failed since the previous step: they "
            "raised, ended or took too long"
        ),
        "rollout/environment_timeouts": Metric("Of these, those that took too long"),
        "rollout/running": Metric("Groups in generation when the batch was formed"),
        "rollout/ready": Metric("Finished groups left for later batches when the batch was formed"),
        "rollout/agent/*": Metric(
            "Mean, minimum and maximum (`/mean`, `/min`, `/max`) of a number that workflows put into the `metrics` of "
            "trajectories, over the answers of the batch that have it; `actor.log_agent_stats_keys` names the numbers"
        ),
        "reward/mean": Metric("Mean over the step's answers"),
        "reward/std": Metric("Standard deviation over the step's answers"),
        "reward/min": Metric("Lowest reward of the step"),
        "reward/max": Metric("Highest reward of the step"),
        "reward/part/*": Metric("Mean of one named part of the reward"),
        "reward/groups_without_spread": Metric(
            "Groups whose answers that vote all got the same reward, or of which fewer than two are left to vote"
        ),
        "reward/answers_without_reward": Metric("Answers whose reward failed: they are not in the loss"),
        "reward/answers_without_vote": Metric(
            "Answers that do not count in the baseline of their group: masked out of the loss, or without a reward. A "
            "conversation counts there if one of its sequences does"
        ),
        "env/*/*/groups": Metric(
            "Its finished groups since the previous step whose rows were drawn from this pool (`normal`, `easy`, "
            "`hard`), where a curriculum has pools and there are several environments"
        ),
        "env/*/*/all_right": Metric("Of these groups, those whose answers all have a score of at least 1"),
        "env/*/*/all_wrong": Metric("Of these groups, those whose answers all have a score of at most 0"),
        "env/*/groups": Metric("Groups of this environment in the step's batch"),
        "env/*/reward": Metric("Their mean reward over answers; a conversation is one"),
        "env/*/score": Metric("Their mean score: the reward part `score`, or the reward if there is none"),
        "env/*/all_right": Metric("Groups of the batch whose answers all have a score of at least 1"),
        "env/*/all_wrong": Metric("Groups of the batch whose answers all have a score of at most 0"),
        "env/*/answer_tokens_mean": Metric("Length of an answer, mean", "tokens"),
        "env/*/left_out": Metric(
            "Its groups left out since the previous step because their rewards were equal or by their difficulty"
        ),
        "env/*/normal": Metric("Its rows that are neither easy nor hard, or not drawn yet", "rows"),
        "env/*/easy": Metric("Its easy rows (`curriculum.easy_border`)", "rows"),
        "env/*/hard": Metric("Its hard rows (`curriculum.hard_border`)", "rows"),
        "env/*/aside_easy": Metric("Its rows set aside as easy (`curriculum.easy_threshold`)", "rows"),
        "env/*/aside_hard": Metric("Its rows set aside as hard (`curriculum.hard_threshold`)", "rows"),
        "env/*/evicted_easy": Metric("Its rows set aside as easy since the previous step"),
        "env/*/evicted_hard": Metric("Its rows set aside as hard since the previous step"),
        "env/*/filtered_easy": Metric("Its groups left out as `curriculum/filtered_easy`, in steps with some"),
        "env/*/filtered_hard": Metric("Its groups left out as `curriculum/filtered_hard`, in steps with some"),
        "env/*/finished": Metric(
            "Its groups that finished since the previous step, where a curriculum draws rows or leaves groups out: "
            "shares of evicted and filtered ones are of these"
        ),
        "curriculum/finished": Metric("Groups that finished since the previous step, also those that were left out"),
        "curriculum/normal": Metric("Rows that are neither easy nor hard, or not drawn yet", "rows"),
        "curriculum/easy": Metric("Easy rows (`curriculum.easy_border`)", "rows"),
        "curriculum/hard": Metric("Hard rows (`curriculum.hard_border`)", "rows"),
        "curriculum/aside_easy": Metric("Rows set aside as easy (`curriculum.easy_threshold`)", "rows"),
        "curriculum/aside_hard": Metric("Rows set aside as hard (`curriculum.hard_threshold`)", "rows"),
        "curriculum/evicted_easy": Metric("Rows set aside as easy since the previous step"),
        "curriculum/evicted_hard": Metric("Rows set aside as hard since the previous step"),
        "curriculum/filtered_easy": Metric(
            "Groups left out since the previous step because their mean reward was 1 or above `curriculum.max_reward`"
        ),
        "curriculum/filtered_hard": Metric("Likewise, because it was 0 or below `curriculum.min_reward`"),
        "curriculum/*/groups": Metric(
            "Finished groups since the previous step whose rows were drawn from this pool (`normal`, `easy`, `hard`)"
        ),
        "curriculum/*/all_right": Metric("Of these groups, those whose answers all have a score of at least 1"),
        "curriculum/*/all_wrong": Metric("Of these groups, those whose answers all have a score of at most 0"),
        "curriculum/own/*": Metric("What `metrics()` of a sampler or gate of your own returns, below its name"),
        "offpolicy/logprob_diff_mean": Metric(
            "Absolute difference between the sampler's and the trainer's log-probability of a token, mean", "nats"
        ),
        "offpolicy/logprob_diff_max": Metric("The same, maximum over the tokens", "nats"),
        "offpolicy/kl": Metric(
            "Estimate of the divergence of the sampling policy from the trained one, per token", "nats"
        ),
        "offpolicy/weight_mean": Metric("Importance weight that corrects for the sampler's older weights, mean"),
        "offpolicy/weight_max": Metric("The same, maximum over the tokens"),
        "offpolicy/staleness_mean": Metric(
            "Updates between the weights that sampled a token and those trained, mean", "updates"
        ),
        "offpolicy/staleness_max": Metric(
            "The same for the oldest sample; never above rollout.max_head_offpolicyness", "updates"
        ),
        "offpolicy/staleness_share/*": Metric("Share of the tokens sampled by weights that many updates old", "share"),
        "offpolicy/probe_difference": Metric(
            "Difference between a server's and the trainer's log-probabilities of the probe after an update, mean over "
            "its tokens, on the server with the largest",
            "nats",
        ),
        "perf/step_s": Metric("From the end of the previous step to the end of this one", "s"),
        "perf/wait_s": Metric("Of that, waiting for the batch", "s"),
        "perf/values_s": Metric("Of that, values of the batch before the update, where there is a critic", "s"),
        "perf/prepare_s": Metric("Of that, packing the batch and computing advantages", "s"),
        "perf/logprobs_s": Metric(
            "Of that, log-probabilities of the policy before the update, and of the reference", "s"
        ),
        "perf/train_s": Metric("Of that, forward, backward and update", "s"),
        "perf/publish_s": Metric(
            "Of that, copying the new weights for the servers (and writing them, if that is as fast)", "s"
        ),
        "perf/critic_s": Metric("Of that, forward, backward and update of the critic", "s"),
        "perf/checkpoint_s": Metric("Of that, writing a checkpoint", "s"),
        "perf/evaluate_s": Metric("Of that, evaluating, where the trainer does it", "s"),
        "perf/tokens_per_s": Metric("Tokens trained on per second of the step", "tokens/s"),
        "perf/samples_per_s": Metric("Sequences trained on per second of the step", "samples/s"),
        "perf/memory_gb": Metric("Peak memory of the trainer: GPU memory; without a GPU that of the process", "GB"),
        "perf/threads": Metric("Threads that the trainer computes with"),
        "perf/cpu_s": Metric("CPU time of the trainer for the step, all threads", "s"),
        "perf/episode_s": Metric("From a prompt to its finished group, mean of those since the previous step", "s"),
        "perf/episode_generate_s": Metric("Of that, waiting for answers; samples that wait together count once", "s"),
        "perf/episode_tools_s": Metric(
            "Likewise for tools and environments, where the workflow has any; for an environment of verifiers, the "
            "time in which no answer was generated",
            "s",
        ),
        "perf/episode_reward_s": Metric("Likewise for rewards", "s"),
        "perf/episode_other_s": Metric(
            "Of that, none of these, where the workflow holds conversations: programs of agents, and waiting for them",
            "s",
        ),
        "perf/generate_tokens_per_s": Metric("Tokens generated per second by all servers together", "tokens/s"),
        "perf/generate_busy_s": Metric("Time in which servers were generating since the previous update, mean", "s"),
        "perf/generate_busy_share": Metric("Share of the time in which servers were generating, mean", "share"),
        "perf/update_stall_s": Metric("Pause of generation for the new weights, on the slowest server", "s"),
        "perf/update_load_s": Metric("Time to load them while generating, on the slowest server", "s"),
        "perf/serve_delay_s": Metric(
            "From the end of the training step until all servers answer with the new weights", "s"
        ),
        "perf/read_back_share": Metric(
            "Share of the new tensors that a server read back and verified, minimum over the servers", "share"
        ),
        "eval/score": Metric("Mean score over the held-out rows; without a score the mean reward"),
        "eval/reward": Metric("Mean reward over the held-out rows"),
        "eval/env/*": Metric("The score over the held-out rows of one environment"),
        "eval/part/*": Metric("Mean of one named part of the reward over the held-out rows"),
        "eval/loss": Metric("Loss on the held-out rows of supervised training"),
        "eval/accuracy": Metric("Share of the held-out pairs whose better answer gets the higher score", "share"),
        "eval/margin": Metric("Score of the better answer minus that of the worse, mean over the held-out pairs"),
        "eval/score_low": Metric("Lower end of the band of the score: 95 of 100 resamples of the rows are within it"),
        "eval/score_high": Metric("Upper end of that band"),
        "eval/avg@*": Metric(
            "With several answers per row: mean over rows of the mean score of so many answers; its band `_low` and "
            "`_high`"
        ),
        "eval/pass@*": Metric(
            "With several answers per row: expected best score of so many of them, which is the probability of a right "
            "one where scores are 0 or 1, mean over the rows; its band `_low` and `_high`"
        ),
        "eval/samples": Metric("Answers that were evaluated. A conversation is one"),
        "eval/conversations": Metric("Of these, conversations, where the workflow holds any"),
        "eval/turns_mean": Metric("Answers of the model in a conversation, mean"),
        "eval/turns_max": Metric("Most answers of the model in a conversation"),
        "eval/turn_tokens_mean": Metric("Length of one answer of the model in a conversation, mean", "tokens"),
        "eval/tool_calls_mean": Metric("Calls of tools in a conversation, mean"),
        "eval/tool_errors_mean": Metric("Of these, those that no tool could answer, mean"),
        "eval/template_breaks": Metric("How often a chat template rewrote earlier turns of a conversation"),
        "eval/due_step": Metric("Step after which the evaluation was due"),
        "eval/version_min": Metric("Oldest weights that answered, as a number of steps"),
        "eval/version_max": Metric("Newest weights that answered; equal to the oldest if one version answered all"),
        "eval/rows": Metric("Rows of the evaluation, also those that failed or were rejected"),
        "eval/failed": Metric(
            "Rows without a result: reward, workflow or server failed in every attempt. They are in no mean. If "
            "failed and rejected rows exceed evaluator.max_failed_share, score, reward and parts are null"
        ),
        "eval/error_rows": Metric("Rows that failed with the most frequent error, whose text is `eval/error`"),
        "eval/rejected": Metric("Rows that the workflow rejected. They are in no mean"),
        "eval/answer_tokens_mean": Metric("Length of an answer, mean", "tokens"),
        "eval/truncated_share": Metric(
            "Share of the answers that were cut off by the length limit; of a conversation, if one of its sequences is",
            "share",
        ),
    }
)
"""Name or pattern -> description, in the order of the page."""

LINE_FIELDS = ("step", "attempt", "time")
"""Fields of a line beside its metrics: completed steps, the attempt, and seconds since 1970."""
ERROR, ERROR_ROWS = "eval/error", "eval/error_rows"
"""Text in the line of an evaluation: the most frequent error of the rows that failed, which is no metric; and how many
rows have it."""
STEP_ERROR, STEP_ERROR_GROUPS = "rollout/error", "rollout/error_groups"
"""The same in the line of a step, for the groups that failed since the previous step."""
BENCHMARK = "eval/benchmark"
"""Text in the line of an evaluation: the name of the benchmark; without one it is of `valid_dataset`."""
TEXTS = (ERROR, STEP_ERROR, BENCHMARK)
"""Fields of a line that are texts, and no metrics."""


def find_metric(name: str) -> Metric | None:
    """The metric of a name, also by pattern; None if it is not in the catalogue."""
    metric = METRICS.get(name)
    if metric is not None and "*" not in name:
        return metric
    found = next((METRICS[pattern] for pattern, fits in _patterns() if fits.fullmatch(name)), None)
    if found is None and (of_benchmark := _OF_BENCHMARK.fullmatch(name)) is not None:
        return find_metric(f"eval/{of_benchmark[1]}")
    return found


_OF_BENCHMARK = re.compile(r"eval/[^/]+/(.+)")
"""`eval/NAME/score` is `eval/score` of a benchmark."""


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (name, re.compile(re.escape(name).replace(r"\*", r"[^/*]+(?:/[^/*]+)*"))) for name in METRICS if "*" in name
    )
