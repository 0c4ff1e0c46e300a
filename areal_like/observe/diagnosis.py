"""Diagnoses common problems from the metrics of each step, and names probable causes in one line."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from areal_like.observe.metrics import STEP_ERROR, STEP_ERROR_GROUPS

FULL_PRECISION = ("float32", "float")
MAX_DIFF_FULL, MAX_DIFF_HALF = 1e-3, 0.05
"""Mean difference between sampler and trainer with equal weights, in nats per token: about 1e-5 in float32, a few
hundredths in half precision."""
MAX_TOKEN_DIFF_FULL = 0.02
"""The same for a single token. In half precision a rare token may differ by nats without a problem."""
MAX_DIFF_STALE = 0.5
MAX_KL_STALE = 0.5
"""Limits with older weights: larger than the effect of a few updates of usual size."""
DRIFT_STEPS = 10
"""Steps in a row: Adam's first updates are as large as the learning rate allows, and a short run has no warmup. Their
effect is over by then."""
REPEAT_STEPS = 50
"""Steps after which a lasting symptom is reported again."""
UNJUDGED = "reward/answers_without_reward"


class Symptom(NamedTuple):
    """Reported when `steps` steps in a row show it."""

    name: str
    steps: int
    shows: Callable[[Mapping[str, float]], bool]
    message: Callable[[int, Mapping[str, float]], str]


class RunDiagnosis:
    """Checks each step of a run with this configuration."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._in_a_row: dict[str, int] = {}
        self._reported_at: dict[str, int] = {}
        self._symptoms = (
            Symptom("apart", 1, self._disagrees, self._why_disagrees),
            Symptom("drifting", DRIFT_STEPS, self._is_drifting, self._why_disagrees),
            Symptom("equal", 5, self._learns_nothing, self._why_no_spread),
            Symptom("negative", 1, self._has_negative_rewards, self._why_not_negative),
            Symptom("truncated", 5, self._is_truncated, _why_truncated),
            Symptom("skipped", 1, lambda values: values.get("train/skipped_updates", 0.0) > 0, _why_skipped),
            Symptom("failed", 1, lambda values: values.get("rollout/failed", 0.0) > 0, _why_failed),
            Symptom("unjudged", 1, lambda values: values.get(UNJUDGED, 0.0) > 0, _why_unjudged),
        )

    def check(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Lines to show to the user, usually none."""
        lines = []
        for symptom in self._symptoms:
            if not symptom.shows(values):
                self._in_a_row[symptom.name] = 0
                continue
            self._in_a_row[symptom.name] = self._in_a_row.get(symptom.name, 0) + 1
            last = self._reported_at.get(symptom.name)
            if last is not None and step < last:
                last = None  # the run went back to a checkpoint
            if self._in_a_row[symptom.name] >= symptom.steps and (last is None or step - last >= REPEAT_STEPS):
                self._reported_at[symptom.name] = step
                lines.append(f"step {step}: {symptom.message(step, values)}")
        return lines

    def _disagrees(self, values: Mapping[str, float]) -> bool:
        """Whether sampler and trainer differ although both have the same weights."""
        if "offpolicy/logprob_diff_mean" not in values or values.get("offpolicy/staleness_max", 0.0) > 0:
            return False  # supervised training has no sampler
        difference, config = values["offpolicy/logprob_diff_mean"], self._config
        if config.rollout.allow_mismatched_sampling:
            return _is_far(values)
        if {config.actor.dtype, served_dtype(config) or config.actor.dtype} <= set(FULL_PRECISION):
            return difference > MAX_DIFF_FULL or values.get("offpolicy/logprob_diff_max", 0.0) > MAX_TOKEN_DIFF_FULL
        return difference > MAX_DIFF_HALF

    def _is_drifting(self, values: Mapping[str, float]) -> bool:
        """Whether they differ by more than the updates in between explain."""
        return values.get("offpolicy/staleness_max", 0.0) > 0 and _is_far(values)

    def _why_disagrees(self, step: int, values: Mapping[str, float]) -> str:
        config, causes = self._config, []
        if config.actor.temperature != config.gconfig.temperature:
            causes.append(
                f"different temperatures: gconfig.temperature={config.gconfig.temperature:g} in sampling, "
                f"actor.temperature={config.actor.temperature:g} in training"
            )
        if config.rollout.allow_mismatched_sampling:
            causes.append("sampling that the trainer cannot reproduce (rollout.allow_mismatched_sampling=true)")
        served = served_dtype(config)
        if served not in (None, "auto", config.actor.dtype):
            causes.append(f"different dtypes: {served} in serving, {config.actor.dtype} in training")
        if values.get("offpolicy/staleness_max", 0.0) > 0:
            bound = config.rollout.max_head_offpolicyness
            causes.append(
                f"updates too large for samples of weights up to {bound} updates old: lower actor.lr or "
                f"rollout.max_head_offpolicyness"
            )
        else:
            causes.append("a server without the new weights (see logs/server-*.log)")
        mean, largest = (values.get(f"offpolicy/logprob_diff_{which}", 0.0) for which in ("mean", "max"))
        apart = f"|dlogp| mean {mean:.2g}, maximum {largest:.2g}"
        if "offpolicy/kl" in values:
            apart += f", kl {values['offpolicy/kl']:.2g}"
        return f"sampler and trainer disagree ({apart}); probable causes: {'; '.join(causes)}"

    def _learns_nothing(self, values: Mapping[str, float]) -> bool:
        """Groups with equal rewards have no signal if the baseline is the group's mean. With a critic, or the mean of
        the batch, it counts whether any sample has an advantage."""
        groups = values.get("rollout/groups", 0.0)
        if groups == 0 or values.get("reward/groups_without_spread", 0.0) < groups:
            return False
        norm = self._config.actor.reward_norm
        if getattr(self._config, "critic", None) is None and norm is not None and norm.mean_level == "group":
            return True
        return values.get("train/sequences_without_signal", 0.0) >= values.get("train/samples", 1.0)

    def _is_truncated(self, values: Mapping[str, float]) -> bool:
        """Whether most answers are truncated; False if all must have the maximum length."""
        if values.get("rollout/truncated_share", 0.0) <= 0.5:
            return False
        gconfig = self._config.gconfig
        return bool(gconfig.min_new_tokens < gconfig.max_new_tokens)

    def _why_no_spread(self, step: int, values: Mapping[str, float]) -> str:
        config = self._config
        return (
            "all answers of each prompt get the same reward, so nothing is learnt; the task may be too hard or "
            f"too easy, or gconfig.temperature={config.gconfig.temperature:g} too low, or "
            f"gconfig.n_samples={config.gconfig.n_samples} too few"
        )

    def _has_negative_rewards(self, values: Mapping[str, float]) -> bool:
        """Whether advantages are divided by means of rewards that may be 0 or negative."""
        if "reward/min" not in values or not self._config.actor.advantage.mean_norm:
            return False
        return self._lowest_reward(values) < 0

    def _lowest_reward(self, values: Mapping[str, float]) -> float:
        """After bias and scaling."""
        actor = self._config.actor
        rewards = values["reward/min"], values["reward/max"]
        return float(min((reward + actor.reward_bias) * actor.reward_scaling for reward in rewards))

    def _why_not_negative(self, step: int, values: Mapping[str, float]) -> str:
        return (
            f"rewards are as low as {self._lowest_reward(values):.3g}, and actor.advantage.mean_norm (MaxRL) divides "
            "by the mean of a group: nothing is learnt from groups whose mean is not above 0, and advantages are very "
            "large where it is just above; raise all rewards by actor.reward_bias, or use algorithm=grpo"
        )


def served_dtype(config: Any) -> str | None:
    """dtype of the engine that generates."""
    backend = config.rollout.backend.partition(":")[0]
    section = getattr(config, backend, None)
    return getattr(section, "dtype", None)


def _is_far(values: Mapping[str, float]) -> bool:
    difference, kl = values.get("offpolicy/logprob_diff_mean", 0.0), values.get("offpolicy/kl", 0.0)
    return difference > MAX_DIFF_STALE or kl > MAX_KL_STALE


def _why_truncated(step: int, values: Mapping[str, float]) -> str:
    share = values["rollout/truncated_share"]
    return (
        f"{share:.0%} of the answers are truncated at gconfig.max_new_tokens; raise it if the task needs longer answers"
    )


def _why_skipped(step: int, values: Mapping[str, float]) -> str:
    return "loss or gradient was not finite, so the update was skipped; if this repeats, lower actor.lr"


def _why_failed(step: int, values: Mapping[str, Any]) -> str:
    count = values["rollout/failed"]
    text = f"{count:g} group{'s' * (count != 1)} left out since the previous step because every attempt failed"
    if error := values.get(STEP_ERROR):
        text += f"; most frequent error ({values.get(STEP_ERROR_GROUPS, 0):g} of {count:g}): {error}"
    return f"{text}; see logs/episodes-*.log"


def _why_unjudged(step: int, values: Mapping[str, Any]) -> str:
    # Older lines have samples alone.
    count, answers = values[UNJUDGED], values.get("rollout/answers") or values["rollout/samples"]
    return (
        f"{count:g} of {answers:g} answers are left out of training because every attempt at their reward failed; "
        "see logs/episodes-*.log"
    )
