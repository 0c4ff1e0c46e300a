"""What calls to the controller carry, read whole before anything is changed: what is malformed is refused with 400."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_like.process.errors import HttpError
from areal_like.process.frames import Frame
from areal_like.process.http import body_field, body_int
from areal_like.rollout.groups import Result
from areal_like.rollout.outcomes import REWARD_COUNT_METRICS
from areal_like.rollout.trajectory import FINISHES

DONE = "done"
STATUSES = (DONE, "rejected", "failed")
FILE_TRANSPORTS = ("disk", "adapter")
"""Ways of weights that go through a folder."""
MAX_NAME_LENGTH = 512
MAX_RANKS = 1 << 16
INTEGER_FACTS = ("length", "generated", "version_min", "version_max")
"""Of the facts of a sample."""


def name(said: Any, key: str) -> str:
    value: str = body_field(said, key, str)
    if not 0 < len(value) <= MAX_NAME_LENGTH:
        raise HttpError(400, f"{key}: {len(value)} characters are no name; give 1 to {MAX_NAME_LENGTH}")
    return value


def datasets(said: Any) -> dict[str, Any]:
    """Of the training rows, and of those held out where there are any."""
    found: dict[str, Any] = body_field(said, "datasets", dict)
    for part in ("train", "valid"):
        dataset = found.get(part)
        if dataset is None and part == "valid":
            continue
        body_field(dataset, "digest", str)
        rows, hashes = body_int(dataset, "rows"), body_field(dataset, "row_hashes", list)
        if len(hashes) != rows or not all(isinstance(one, str) for one in hashes):
            raise HttpError(400, f"datasets.{part}: row_hashes must be {rows} texts, one for each of its rows")
    return found


def finished(frame: Frame) -> tuple[str, dict[str, int], list[Result]]:
    """The worker, what it counted since its beginning, and what came of its leases."""
    worker, said = name(frame.header, "worker"), body_field(frame.header, "results", list)
    counts = body_field(frame.header, "counts", dict, {})
    for key in counts:
        if key not in REWARD_COUNT_METRICS:
            raise HttpError(400, f"counts: {key[:80]!r} is not counted; {', '.join(REWARD_COUNT_METRICS)} are")
        body_int(counts, key)
    num_done = sum(isinstance(one, dict) and one.get("status") == DONE for one in said)
    if num_done != len(frame.blobs):
        raise HttpError(400, f"results: {num_done} are done, and the frame has arrays of {len(frame.blobs)}")
    blobs = iter(frame.blobs)
    return worker, counts, [_result(one, blobs) for one in said]


def _result(said: Any, blobs: Any) -> Result:
    """Its arrays are copied, so that they do not hold those of the others of the message in memory."""
    status = body_field(said, "status", str)
    if status not in STATUSES:
        raise HttpError(400, f"status: {status[:80]!r} is none of {', '.join(STATUSES)}")
    timings = body_field(said, "timings", dict, {})
    _each(timings, "timings", is_finite)
    facts = body_field(said, "facts", list, [])
    if status == DONE:
        _check_facts(facts)
    return Result(
        lease=body_field(said, "lease", str),
        status=status,
        facts=facts if status == DONE else [],
        blob=bytes(next(blobs)) if status == DONE else b"",
        error=body_field(said, "error", str, ""),
        error_kind=body_field(said, "error_kind", str, ""),
        timings=timings,
    )


def _check_facts(facts: Sequence[Any]) -> None:
    if not facts:
        raise HttpError(400, "facts: a result that is done has those of at least one sample")
    for fact in facts:
        for key in INTEGER_FACTS:
            body_int(fact, key)
        if not fact["version_min"] <= fact["version_max"]:
            raise HttpError(400, f"version_min: {fact['version_min']} is above version_max={fact['version_max']}")
        if not is_finite(fact.get("reward")):
            raise HttpError(400, "reward: missing from the facts of a sample, or no finite number")
        if body_field(fact, "finish", str) not in FINISHES:
            raise HttpError(400, f"finish: must be one of {', '.join(FINISHES)}")
        _each(body_field(fact, "rewards", dict), "rewards", is_finite)
        _each(body_field(fact, "metrics", dict, {}), "metrics", lambda value: value is None or is_finite(value))
        for key in ("env", "prompt_hash"):
            body_field(fact, key, str, "")


def publication(said: Any) -> dict[str, Any]:
    """Where its weights are is looked at later."""
    body_int(said, "version")
    transport = body_field(said, "transport", str, "disk")
    if transport in FILE_TRANSPORTS:
        if "\0" in body_field(said, "folder", str):
            raise HttpError(400, "folder: is no path")
    elif transport == "collective":
        body_field(said, "index", dict)
        place = body_field(said, "meeting", dict)
        name(place, "host")
        if not 0 < body_int(place, "port") < 1 << 16:
            raise HttpError(400, f"port: {place['port']} is none")
        if not all(isinstance(one, str) for one in body_field(place, "devices", list)):
            raise HttpError(400, "devices: must be a list of texts")
    else:
        raise HttpError(400, f"transport: {transport[:80]!r} is none of {', '.join(FILE_TRANSPORTS)}, collective")
    found: dict[str, Any] = said
    return found


def rank_and_world(said: Any) -> tuple[int, int]:
    """A rank of the trainer, and how many there are."""
    rank, world = body_int(said, "rank"), body_int(said, "world", 1)
    if world > MAX_RANKS:
        raise HttpError(400, f"world: {world} ranks are more than there can be ({MAX_RANKS})")
    if rank >= world:
        raise HttpError(400, f"rank: {rank} is not below world={world}")
    return rank, world


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _each(values: Mapping[str, Any], key: str, fits: Callable[[Any], bool]) -> None:
    for one, value in values.items():
        if not fits(value):
            raise HttpError(400, f"{key}.{one[:80]}: is no finite number")
