"""How answers are sampled."""

from areal_like.config.fields import config, key

MIN_TEMPERATURE = 1e-3
"""Above 0. A smaller one makes numbers of logits that are none."""
MAX_SAMPLING_VALUE = 1e6
"""Temperature and repetition penalty."""
MIN_REPETITION_PENALTY = 0.01
MAX_TOKENS = 2_000_000_000
MAX_SAMPLES = 1 << 16
"""Answers to one prompt."""
MAX_STOP_TEXTS, MAX_STOP_LENGTH, MAX_STOP_TOKENS = 256, 1024, 1024
"""Texts that end an answer, the characters of one, and tokens that end an answer. Servers hold to all of these."""


@config
class GenerationHyperparameters:
    """How answers are sampled. The trainer reckons with the same distribution; what it cannot reproduce is refused in
    training unless `rollout.allow_mismatched_sampling` allows it."""

    n_samples: int = key(1, ge=1, le=MAX_SAMPLES)
    """Answers per prompt: the group whose rewards are compared with each other. GRPO and its kin need at least 2."""

    max_new_tokens: int = key(16384, ge=1, le=MAX_TOKENS)
    """Most tokens of one answer. An answer cut off here counts as truncated."""

    min_new_tokens: int = key(0, ge=0, le=MAX_TOKENS)
    """Before so many tokens an answer cannot end: end tokens are forbidden, and texts in `stop` passed over. Above 0
    the trainer cannot reproduce it."""

    max_tokens: int = key(65536, ge=1, le=MAX_TOKENS)
    """Most tokens of prompt and answer together. A long prompt leaves less than `max_new_tokens` for its answer."""

    greedy: bool = key(False)
    """Always take the likeliest token, whatever the temperature. All answers of a group are then alike, so this is for
    evaluation."""

    top_p: float = key(1.0, gt=0, le=1)
    """Sample only from the likeliest tokens that together reach this probability. Below 1 the trainer cannot
    reproduce it."""

    top_k: int = key(100_000_000, ge=-1, le=MAX_TOKENS)
    """Sample only from so many of the likeliest tokens; 0, -1 or more than the vocabulary is all of them. A real limit
    the trainer cannot reproduce."""

    temperature: float = key(1.0, ge=0, le=MAX_SAMPLING_VALUE)
    """Logits are divided by this before sampling, and by the trainer too. 0 is greedy."""

    stop_token_ids: list[int] = key([], ge=0)
    """Token ids that end an answer, besides the model's own end tokens; at most 1,024."""

    stop: list[str] | None = key(None)
    """Texts that end an answer as soon as it contains one of them: at most 256 of 1,024 characters. Null:
    none."""

    frequency_penalty: float = key(0.0, ge=-2, le=2)
    """Lowers a token's logit by this for every time it is in the answer already; negative values encourage
    repetition. Other than 0 the trainer cannot reproduce it."""

    repetition_penalty: float = key(1.0, ge=MIN_REPETITION_PENALTY, le=MAX_SAMPLING_VALUE)
    """Above 1 makes tokens that were seen already less likely. Other than 1 the trainer cannot reproduce it."""

    min_p: float = key(0.0, ge=0, le=1)
    """Drop tokens less likely than this share of the likeliest token's probability. Above 0 the trainer cannot
    reproduce it."""

    seed: int | None = key(None, ge=0)
    """Seed of the sampling noise; every answer of a group still gets noise of its own. Null: derived from the
    experiment's `seed`."""
