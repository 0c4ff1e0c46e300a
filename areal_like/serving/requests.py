"""What is asked of the engine and what it answers. A request that it cannot keep to the letter is refused."""

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
"""That a call of the run may say."""
CLIENT_PRIORITY = 1 << 62
"""Priority of clients of others: after all that the run asks for."""
MAX_GROUPS = 1 << 24
"""Of one step."""
MAX_DEADLINE_S = 1e9
MAX_NAME_LENGTH = 512
MAX_SHOWN = 80
"""Characters of a value that are repeated in a complaint about it."""


class BadRequest(ValueError):
    """This group cannot be generated as it was asked for."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and where an answer ends; the names are those of `gconfig`, the defaults ask for nothing.
    A `top_k` of 0 is all tokens."""

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
        """Whether temperature is all that comes between the model and the token; leaving out unlikely tokens changes
        nothing for who takes the likeliest."""
        whole = self.is_greedy or (self.top_p == 1 and self.top_k == 0 and self.min_p == 0)
        untouched = self.frequency_penalty == 0 and self.repetition_penalty == 1
        return whole and untouched and self.min_new_tokens == 0


@dataclass(frozen=True)
class StepSlot:
    """Place of a group among the `of` groups of one synchronous step (`key`) on this server."""

    key: str
    place: int
    of: int


@dataclass(frozen=True)
class GroupRequest:
    """One prompt and how many answers it wants. `priority`: smaller goes first; `deadline_s`: seconds after which the
    group ends without answers; `top_logprobs`: number of most likely tokens that are
    reported for each token."""

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
    """The name of one that is loaded; empty is the model by itself, and None whatever the run serves."""


@dataclass(frozen=True)
class GeneratedSample:
    """One answer; the stop token is part of it. `versions`: the weights that made each token."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str


@dataclass(frozen=True)
class SampleWithTopLogprobs(GeneratedSample):
    """For groups that ask for them. `top_logprobs`: for each token the most likely ones in its place."""

    top_logprobs: list[dict[int, float]]


@dataclass(frozen=True)
class FinishedGroup:
    """A group with all its answers, or why there are none. `number` is what `submit` returned."""

    number: int
    id: str
    samples: list[GeneratedSample]
    error: str | None = None


def parse_group(
    said: Any, vocab_size: int, context_length: int = MAX_TOKENS, length_key: str = "embedded.context_length"
) -> GroupRequest:
    """A group as it comes over the wire; raises BadRequest. Every number is within what the model and its context can
    use. `length_key` is where the context is set."""
    if not isinstance(said, Mapping):
        raise BadRequest("groups: each is an object with id, prompt, n, seed and sampling")
    unknown = set(said) - {"id", "prompt", "n", "seed", "sampling", "order", "priority", "deadline_s"}
    if unknown:
        raise BadRequest(f"{min(map(str, unknown))[:MAX_SHOWN]}: a group has no such field")
    prompt = said.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest("prompt: give at least one token id")
    if len(prompt) >= context_length:
        raise BadRequest(_no_room(length_key, len(prompt), context_length))
    _check_tokens("prompt", prompt, vocab_size)
    return GroupRequest(
        id=_name("id", said.get("id", "")),
        prompt=tuple(prompt),
        n=_integer("n", said.get("n", 1), 1, MAX_SAMPLES),
        seed=_integer("seed", said.get("seed", 0), 0, MAX_SEED),
        sampling=parse_sampling(said.get("sampling") or {}, vocab_size, context_length),
        order=_parse_order(said.get("order")),
        priority=_integer("priority", said.get("priority", 0), -MAX_PRIORITY, MAX_PRIORITY),
        deadline_s=None if said.get("deadline_s") is None else _deadline(said["deadline_s"]),
    )


def parse_sampling(said: Any, vocab_size: int, context_length: int = MAX_TOKENS) -> Sampling:
    """Keys are those of `gconfig`; null is as good as not said."""
    if not isinstance(said, Mapping):
        raise BadRequest(f"sampling: {shorten(said)} is not an object with keys of gconfig")
    values = {key: value for key, value in said.items() if value is not None}
    known = {one.name for one in fields(Sampling)}
    unknown = set(values) - known
    if unknown:
        raise BadRequest(
            f"gconfig.{min(map(str, unknown))[:MAX_SHOWN]}: not known; the sampling of a group has "
            f"{', '.join(sorted(known))}"
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
"""Of sampling: key, least, most, and whether it must be above the least."""


def _parse_order(said: Any) -> StepSlot | None:
    if said is None:
        return None
    if not isinstance(said, Mapping) or set(said) != {"key", "place", "of"}:
        raise BadRequest("order: null, or an object with key, place and of")
    place = _integer("order.place", said["place"], 0, MAX_GROUPS)
    order = StepSlot(_name("order.key", said["key"]), place, _integer("order.of", said["of"], 1, MAX_GROUPS))
    if order.place >= order.of:
        raise BadRequest(f"order.place: {order.place} is not below order.of={order.of}")
    return order


def shorten(value: Any) -> str:
    """For a complaint, which should not be as long as what it complains of."""
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
    """One text or several."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{name}: {shorten(value)} is not a list of texts")
    if len(texts) > MAX_STOP_TEXTS or any(len(text) > MAX_STOP_LENGTH for text in texts):
        raise BadRequest(
            f"{name}: at most {MAX_STOP_TEXTS} texts of {MAX_STOP_LENGTH} characters are looked for; leave some out"
        )
    if "" in texts:
        raise BadRequest(f"{name}: an empty text would end every answer at once; leave it out")
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
                f"{name}: {shorten(token)} is no token of this model, whose ids go from 0 to {vocab_size - 1}"
            )


def _no_room(key: str, num_prompt: int, most: int) -> str:
    return f"{key}: the prompt has {num_prompt} tokens, and {most} leave no room for an answer"


def max_answer_tokens(sampling: Sampling, num_prompt: int, context_length: int, length_key: str) -> int:
    """Most tokens of one answer: where the context or the request ends, an answer is cut off. A prompt that leaves no
    room for one is refused; `length_key` is where its server's context is set."""
    most = min(sampling.max_tokens, context_length)
    if num_prompt >= most:
        key = "gconfig.max_tokens" if sampling.max_tokens < context_length else length_key
        raise BadRequest(_no_room(key, num_prompt, most))
    return min(sampling.max_new_tokens, most - num_prompt)
