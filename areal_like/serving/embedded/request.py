"""What is asked of the engine and what it answers. A request that it cannot keep to the letter is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

LARGEST_SEED = (1 << 64) - 1


class BadRequest(ValueError):
    """This group cannot be generated as it was asked for."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and where an answer ends; the defaults are those of `gconfig`."""

    temperature: float = 1.0
    greedy: bool = False
    max_new_tokens: int = 16384
    max_tokens: int = 65536
    stop_token_ids: tuple[int, ...] = ()

    @property
    def takes_likeliest(self) -> bool:
        return self.greedy or self.temperature == 0


@dataclass(frozen=True)
class Order:
    """Place of a group among the `of` groups of one synchronous step (`key`) on this server."""

    key: str
    place: int
    of: int


@dataclass(frozen=True)
class Group:
    """One prompt and how many answers it wants."""

    id: str
    prompt: tuple[int, ...]
    n: int = 1
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    order: Order | None = None


@dataclass(frozen=True)
class Sample:
    """One answer; the stop token is part of it. `versions`: the weights that made each token."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str


@dataclass(frozen=True)
class Finished:
    """A group with all its answers, or why there are none. `ticket` is what `submit` returned."""

    ticket: int
    id: str
    samples: list[Sample]
    error: str | None = None


def parse_group(said: Any, vocab_size: int) -> Group:
    """A group as it comes over the wire; raises BadRequest."""
    if not isinstance(said, Mapping):
        raise BadRequest("groups: each is an object with id, prompt, n, seed and sampling")
    unknown = set(said) - {"id", "prompt", "n", "seed", "sampling", "order"}
    if unknown:
        raise BadRequest(f"{sorted(unknown)[0]}: a group has no such field")
    prompt = said.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest("prompt: give at least one token id")
    _check_tokens("prompt", prompt, vocab_size)
    return Group(
        id=str(said.get("id", "")),
        prompt=tuple(prompt),
        n=_integer("n", said.get("n", 1), 1),
        seed=_integer("seed", said.get("seed", 0), 0, LARGEST_SEED),
        sampling=parse_sampling(said.get("sampling") or {}, vocab_size),
        order=_parse_order(said.get("order")),
    )


def parse_sampling(said: Mapping[str, Any], vocab_size: int) -> Sampling:
    """Keys are those of `gconfig`. What this engine does not do may be said as long as it asks for nothing."""
    values = dict(said)
    for key, asks_nothing, instead in _not_done(vocab_size):
        if key in values and not asks_nothing(values.pop(key)):
            raise BadRequest(
                f"gconfig.{key}: {said[key]} is something that the embedded engine does not do yet; "
                f"set gconfig.{key}={instead} or take another rollout.backend"
            )
    known = {one.name for one in fields(Sampling)}
    unknown = set(values) - known
    if unknown:
        raise BadRequest(
            f"gconfig.{sorted(unknown)[0]}: not known; the sampling of a group has {', '.join(sorted(known))}"
        )
    if "stop_token_ids" in values:
        stops = list(values["stop_token_ids"] or ())
        _check_tokens("gconfig.stop_token_ids", stops, vocab_size)
        values["stop_token_ids"] = tuple(stops)
    for key in ("max_new_tokens", "max_tokens"):
        if key in values:
            _integer(f"gconfig.{key}", values[key], 1)
    temperature = values.get("temperature", 1.0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < 1e6:
        raise BadRequest(f"gconfig.temperature: {temperature} is not a number from 0 on")
    if not isinstance(values.get("greedy", False), bool):
        raise BadRequest(f"gconfig.greedy: {values['greedy']} is neither true nor false")
    return Sampling(**values)


def _not_done(vocab_size: int) -> Any:
    """Keys of `gconfig` without effect here: when they ask for nothing, and what to set instead."""
    return (
        ("top_p", lambda value: value is None or value >= 1, "1"),
        ("top_k", lambda value: value is None or value <= 0 or value >= vocab_size, "-1"),
        ("min_p", lambda value: not value, "0"),
        ("frequency_penalty", lambda value: not value, "0"),
        ("repetition_penalty", lambda value: value is None or value == 1, "1"),
        ("min_new_tokens", lambda value: not value, "0"),
        ("stop", lambda value: not value, "null"),
    )


def _parse_order(said: Any) -> Order | None:
    if said is None:
        return None
    if not isinstance(said, Mapping) or set(said) != {"key", "place", "of"}:
        raise BadRequest("order: null, or an object with key, place and of")
    order = Order(str(said["key"]), _integer("order.place", said["place"], 0), _integer("order.of", said["of"], 1))
    if order.place >= order.of:
        raise BadRequest(f"order.place: {order.place} is not below order.of={order.of}")
    return order


def _integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise BadRequest(f"{name}: {value} is not a whole number from {least} on")
    return value


def _check_tokens(name: str, tokens: list[Any], vocab_size: int) -> None:
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise BadRequest(f"{name}: {token!r} is no token of this model, whose ids go from 0 to {vocab_size - 1}")
