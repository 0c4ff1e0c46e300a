"""Section `gconfig`: how answers are sampled."""

from areal_like.config.fields import config, key

MIN_TEMPERATURE = 1e-3
"""Of sampling; 0 is allowed as well. Smaller ones overflow the logits."""
MAX_SAMPLING_VALUE = 1e6
"""Temperature and repetition penalty."""
MIN_REPETITION_PENALTY = 0.01
MAX_TOKENS = 2_000_000_000
MAX_SAMPLES = 1 << 16
"""Answers to one prompt."""
MAX_STOP_TEXTS, MAX_STOP_LENGTH, MAX_STOP_TOKENS = 256, 1024, 1024
"""Limits of the servers: number of stop texts, characters of one, number of stop tokens."""


@config
class GenerationHyperparameters:
    """How answers are sampled. The trainer assumes the same distribution; what it cannot reproduce is refused in
    training unless `rollout.allow_mismatched_sampling` is set."""

    n_samples: int = key(1, ge=1, le=MAX_SAMPLES)
    """Answers per prompt: the group whose rewards are compared with each other. Group baselines such as GRPO need at
    least 2."""

    max_new_tokens: int = key(16384, ge=1, le=MAX_TOKENS)
    """Maximum number of tokens of one answer. An answer that reaches it without ending is truncated."""

    min_new_tokens: int = key(0, ge=0, le=MAX_TOKENS)
    """Minimum number of tokens of one answer: before it, end tokens are suppressed, and texts in `stop` are ignored.
    The trainer cannot reproduce values above 0."""

    max_tokens: int = key(65536, ge=1, le=MAX_TOKENS)
    """Maximum number of tokens of prompt and answer together. A long prompt shortens its answer."""

    greedy: bool = key(False)
    """Always take the most likely token, ignoring the temperature. All answers of a group are then equal, so this is
    for evaluation."""

    top_p: float = key(1.0, gt=0, le=1)
    """Sample only from the most likely tokens that together reach this probability. The trainer cannot reproduce values
    below 1."""

    top_k: int = key(100_000_000, ge=-1, le=MAX_TOKENS)
    """Sample only from this many of the most likely tokens; 0, -1 or more than the vocabulary means all. The trainer
    cannot reproduce a real limit."""

    temperature: float = key(1.0, ge=0, le=MAX_SAMPLING_VALUE)
    """Logits are divided by this before sampling, and by the trainer too, so that it is at least 0.001."""

    stop_token_ids: list[int] = key([], ge=0)
    """Token ids that end an answer, in addition to the end tokens of the model; at most 1,024."""

    stop: list[str] | None = key(None)
    """Texts that end an answer as soon as it contains one of them: at most 256, of at most 1,024 characters. Null:
    none."""

    frequency_penalty: float = key(0.0, ge=-2, le=2)
    """Lowers a token's logit by this for each of its occurrences in the answer; negative values encourage repetition.
    The trainer cannot reproduce values other than 0."""

    repetition_penalty: float = key(1.0, ge=MIN_REPETITION_PENALTY, le=MAX_SAMPLING_VALUE)
    """Values above 1 make tokens less likely that occur in prompt or answer already. The trainer cannot reproduce
    values other than 1."""

    min_p: float = key(0.0, ge=0, le=1)
    """Drop tokens less likely than this fraction of the most likely token's probability. The trainer cannot reproduce
    values above 0."""

    seed: int | None = key(None, ge=0)
    """Seed of the sampling noise; each answer of a group gets different noise. Null: derived from the experiment's
    `seed`."""
