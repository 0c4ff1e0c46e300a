"""Requests for samples and their results. A request that cannot be fulfilled exactly is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from areal_like.config.sections.generation import (
    MAX_SAMPLES,
    MAX_SAMPLING_VALUE,
    MAX_STOP_LENGTH,
    MAX_STOP_TEXTS,
    MAX_STOP_TOKENS,
    MAX_TOKENS,
    MIN_REPETITION_PENALTY,
    MIN_TEMPERATURE,
)

MAX_SEED = (1 << 64) - 1
MAX_PRIORITY = (1 << 61) - 1
"""The largest priority in a call of the run."""
CLIENT_PRIORITY = 1 << 62
"""Priority of public clients: after all requests of the run."""
MAX_GROUPS = 1 << 24
"""Groups of one step."""
MAX_DEADLINE_S = 1e9
MAX_NAME_LENGTH = 512
MAX_SHOWN = 80
"""Characters of a value that an error message shows."""


class BadRequest(ValueError):
    """This group cannot be generated as requested."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled and where an answer ends. Names are those of `gconfig`; the defaults change nothing. A
    `top_k` of 0 means all tokens."""

    temperature: float = 1.0
    greedy: bool = False
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int = 65536
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.greedy or self.temperature == 0

    @property
    def is_plain(self) -> bool:
        """Whether temperature alone changes the distribution; truncation has no effect on greedy sampling."""
        untruncated = self.is_greedy or (self.top_p == 1 and self.top_k == 0 and self.min_p == 0)
        unpenalized = self.frequency_penalty == 0 and self.repetition_penalty == 1
        return untruncated and unpenalized and self.min_new_tokens == 0


SAMPLING_KEYS = tuple(each.name for each in fields(Sampling))


@dataclass(frozen=True)
class StepSlot:
    """Place of a group among the `of` groups of one synchronous step (`key`) on this server."""

    key: str
    place: int
    of: int


@dataclass(frozen=True)
class GroupRequest:
    """One prompt and its number of samples, which is 0 where nothing comes for its place in a step. `priority`: smaller
    goes first; `deadline_s`: then the group ends without samples; `top_logprobs`: how many of the likeliest tokens are
    reported at each place."""

    id: str
    prompt: tuple[int, ...]
    n: int = 1
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    order: StepSlot | None = None
    priority: int = 0
    deadline_s: float | None = None
    top_logprobs: int = 0
    adapter: str | None = None
    """A loaded adapter; empty means the base model, None the adapter that the run serves."""


@dataclass(frozen=True)
class GeneratedSample:
    """One answer, with its stop token. `versions`: the weight version of each token."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str


@dataclass(frozen=True)
class SampleWithTopLogprobs(GeneratedSample):
    """For groups with `top_logprobs`: at each place the likeliest tokens and their log-probabilities."""

    top_logprobs: list[dict[int, float]]


@dataclass(frozen=True)
class FinishedGroup:
    """A group with all its samples, or the error. `number` is what `submit` returned."""

    number: int
    id: str
    samples: list[GeneratedSample]
    error: str | None = None


def parse_group(
    body: Any, vocab_size: int, context_length: int = MAX_TOKENS, length_key: str = "rollout"
) -> GroupRequest:
    """Raises BadRequest. Every number is bounded by the model and its context, which `length_key` sets."""
    if not isinstance(body, Mapping):
        raise BadRequest("groups: each is an object with id, prompt, n, seed and sampling")
    unknown = set(body) - {"id", "prompt", "n", "seed", "sampling", "order", "priority", "deadline_s"}
    if unknown:
        raise BadRequest(f"{min(map(str, unknown))[:MAX_SHOWN]}: a group has no such field")
    order = _parse_order(body.get("order"))
    n = _integer("n", body.get("n", 1), 1 if order is None else 0, MAX_SAMPLES)
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or (n and not prompt):
        raise BadRequest("prompt: give at least one token id")
    if len(prompt) >= context_length:
        raise BadRequest(_no_room(length_key, len(prompt), context_length))
    _check_tokens("prompt", prompt, vocab_size)
    return GroupRequest(
        id=_name("id", body.get("id", "")),
        prompt=tuple(prompt),
        n=n,
        seed=_integer("seed", body.get("seed", 0), 0, MAX_SEED),
        sampling=parse_sampling(body.get("sampling") or {}, vocab_size, context_length),
        order=order,
        priority=_integer("priority", body.get("priority", 0), -MAX_PRIORITY, MAX_PRIORITY),
        deadline_s=None if body.get("deadline_s") is None else _deadline(body["deadline_s"]),
    )


def parse_sampling(body: Any, vocab_size: int, context_length: int = MAX_TOKENS) -> Sampling:
    """Keys are those of `gconfig`; null is the same as a missing key."""
    if not isinstance(body, Mapping):
        raise BadRequest(f"sampling: {shorten(body)} is not an object with keys of gconfig")
    values = {key: value for key, value in body.items() if value is not None}
    unknown = values.keys() - SAMPLING_KEYS
    if unknown:
        raise BadRequest(
            f"gconfig.{min(map(str, unknown))[:MAX_SHOWN]}: not known; the sampling of a group has "
            f"{', '.join(sorted(SAMPLING_KEYS))}"
        )
    for key, least, most, above in NUMBERS:
        if key in values:
            _number(f"gconfig.{key}", values[key], least, most, above)
    if 0 < values.get("temperature", 1) < MIN_TEMPERATURE:
        reason = f"{values['temperature']} is too small; take 0 (the likeliest token), or {MIN_TEMPERATURE} and more"
        raise BadRequest(f"gconfig.temperature: {reason}")
    for key, fewest in (("max_new_tokens", 1), ("max_tokens", 1), ("min_new_tokens", 0), ("top_k", -1)):
        if key in values:
            _integer(f"gconfig.{key}", values[key], fewest, MAX_TOKENS)
    if "min_new_tokens" in values:
        values["min_new_tokens"] = min(values["min_new_tokens"], context_length)
    if not isinstance(values.get("greedy", False), bool):
        raise BadRequest(f"gconfig.greedy: {shorten(values['greedy'])} is neither true nor false")
    if not 0 < values.get("top_k", 0) < vocab_size:
        values["top_k"] = 0
    if "stop_token_ids" in values:
        values["stop_token_ids"] = _stop_tokens(values["stop_token_ids"], vocab_size)
    if "stop" in values:
        values["stop"] = _texts("gconfig.stop", values["stop"])
    return Sampling(**values)


NUMBERS: tuple[tuple[str, float, float, bool], ...] = (
    ("temperature", 0, MAX_SAMPLING_VALUE, False),
    ("top_p", 0, 1, True),
    ("min_p", 0, 1, False),
    ("frequency_penalty", -2, 2, False),
    ("repetition_penalty", MIN_REPETITION_PENALTY, MAX_SAMPLING_VALUE, False),
)
"""Key of sampling, minimum, maximum, and whether the minimum is excluded."""


def _parse_order(value: Any) -> StepSlot | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"key", "place", "of"}:
        raise BadRequest("order: null, or an object with key, place and of")
    place = _integer("order.place", value["place"], 0, MAX_GROUPS)
    slot = StepSlot(_name("order.key", value["key"]), place, _integer("order.of", value["of"], 1, MAX_GROUPS))
    if slot.place >= slot.of:
        raise BadRequest(f"order.place: {slot.place} is not below order.of={slot.of}")
    return slot


def shorten(value: Any) -> str:
    """A value for an error message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _name(what: str, value: Any) -> str:
    if not isinstance(value, str | int) or len(str(value)) > MAX_NAME_LENGTH:
        raise BadRequest(f"{what}: {shorten(value)} is not a name of at most {MAX_NAME_LENGTH} characters")
    return str(value)


def _deadline(value: Any) -> float:
    return _number("deadline_s", value, 0, MAX_DEADLINE_S, above=True)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(f"{name}: {shorten(value)} is not a whole number from {least} to {most}")
    return value


def _number(name: str, value: Any, least: float, most: float = float("inf"), above: bool = False) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if not fits or (above and value == least):
        bound = f"above {least:g}" if above else f"from {least:g} on"
        raise BadRequest(f"{name}: {shorten(value)} is not a number {bound} up to {most:g}")
    return float(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or a list of texts."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{name}: {shorten(value)} is not a list of texts")
    if len(texts) > MAX_STOP_TEXTS or any(len(text) > MAX_STOP_LENGTH for text in texts):
        raise BadRequest(
            f"{name}: at most {MAX_STOP_TEXTS} texts of {MAX_STOP_LENGTH} characters are allowed; remove some"
        )
    if "" in texts:
        raise BadRequest(f"{name}: an empty text would end every answer immediately; remove it")
    return tuple(texts)


def _stop_tokens(value: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_STOP_TOKENS:
        raise BadRequest(
            f"gconfig.stop_token_ids: {shorten(value)} is not a list of at most {MAX_STOP_TOKENS} token ids"
        )
    _check_tokens("gconfig.stop_token_ids", value, vocab_size)
    return tuple(value)


def _check_tokens(name: str, tokens: Sequence[Any], vocab_size: int) -> None:
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise BadRequest(
                f"{name}: {shorten(token)} is not a token of this model, whose ids are 0 to {vocab_size - 1}"
            )


def _no_room(key: str, num_prompt: int, most: int) -> str:
    return f"{key}: the prompt has {num_prompt} tokens, and {most} leave no room for an answer"


def max_answer_tokens(sampling: Sampling, num_prompt: int, context_length: int, length_key: str) -> int:
    """Maximum tokens of one answer, by the request and the context. Raises BadRequest if the prompt leaves no room;
    `length_key` is the key of the server's context."""
    most = min(sampling.max_tokens, context_length)
    if num_prompt >= most:
        key = "gconfig.max_tokens" if sampling.max_tokens < context_length else length_key
        raise BadRequest(_no_room(key, num_prompt, most))
    return min(sampling.max_new_tokens, most - num_prompt)
