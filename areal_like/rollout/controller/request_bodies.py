"""Parses and checks request bodies of the controller; a malformed one is refused with 400 before any change."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_like.data.row_table import InspectedRow
from areal_like.observe.writer import stored_error
from areal_like.process.errors import HttpError
from areal_like.process.frames import Frame
from areal_like.process.http import body_field, body_int
from areal_like.rollout.conversation_facts import conversation_numbers
from areal_like.rollout.groups import Result
from areal_like.rollout.row_inspection import InspectedDataset
from areal_like.rollout.step_counts import ENVIRONMENT_COUNTS, REWARD_COUNT_METRICS
from areal_like.rollout.trajectory import FINISHES

DONE = "done"
STATUSES = (DONE, "rejected", "failed")
COUNTERS = (*REWARD_COUNT_METRICS, *ENVIRONMENT_COUNTS)
FILE_TRANSPORTS = ("disk", "adapter")
"""Transports that publish a folder."""
MAX_NAME_LENGTH = 512
MAX_RANKS = 1 << 16
MAX_TOKEN, MAX_ROWS = 1 << 31, 1 << 30
HASH = re.compile("[0-9a-f]{16}")
INTEGER_FACTS = ("length", "generated", "loss_tokens", "version_min", "version_max")
"""Integer facts of a sample."""
OPTIONAL_INTEGER_FACTS = ("conversation", "run", "observed_in_loss")


def name(body: Any, key: str) -> str:
    value: str = body_field(body, key, str)
    if not 0 < len(value) <= MAX_NAME_LENGTH:
        raise HttpError(400, f"{key}: {len(value)} characters are not a name; send 1 to {MAX_NAME_LENGTH}")
    return value


def datasets(body: Any) -> dict[str, Any]:
    """The training rows, and the validation rows and benchmarks if there are any."""
    parts: dict[str, Any] = body_field(body, "datasets", dict)
    found = {"train": parts.get("train"), **body_field(parts, "benchmarks", dict, {})}
    if parts.get("valid") is not None:
        found["valid"] = parts["valid"]
    for part, dataset in found.items():
        body_field(dataset, "digest", str)
        if (rows := body_int(dataset, "rows")) > MAX_ROWS:
            raise HttpError(400, f"datasets.{part[:80]}: {rows} rows are more than the maximum of {MAX_ROWS}")
    labels = body_field(parts["train"], "difficulty", str, "")
    if labels and (len(labels) != parts["train"]["rows"] or not set(labels) <= set("neh")):
        raise HttpError(400, "datasets.train: difficulty must have a letter of n, e and h for each row")
    for each in body_field(parts["train"], "environments", list, []):
        if not (isinstance(each, list) and [type(value) for value in each] == [str, int] and 0 < each[1] <= MAX_ROWS):
            raise HttpError(400, "datasets.train: environments must have a name and a number of rows for each")
    tokens = body_field(parts["train"], "probe_tokens", list)
    if not all(type(each) is int and 0 <= each < MAX_TOKEN for each in tokens):
        raise HttpError(400, f"datasets.train: probe_tokens must be token ids, numbers from 0 to {MAX_TOKEN - 1}")
    return parts


def held(body: Any) -> tuple[int, list[str]]:
    """The number of a worker's call for leases, and the leases that it holds."""
    leases: list[str] = body_field(body, "held", list)
    if not all(isinstance(each, str) for each in leases):
        raise HttpError(400, "held: each must be a string, the id of a lease")
    return body_int(body, "call", 1), leases


def inspected(body: Any, datasets: Mapping[str, InspectedDataset]) -> dict[str, list[InspectedRow]]:
    """Rows that the worker has inspected, by dataset: [row, hash, whether it is too long]."""
    parts = body_field(body, "inspected", dict, {})
    return {part: [_inspected_row(each, part, datasets) for each in body_field(parts, part, list)] for part in parts}


def _inspected_row(body: Any, part: str, datasets: Mapping[str, InspectedDataset]) -> InspectedRow:
    if part in datasets and isinstance(body, list) and len(body) == len(InspectedRow._fields):
        row, row_hash, is_too_long = body
        fits = type(row) is int and 0 <= row < len(datasets[part].rows) and isinstance(is_too_long, bool)
        if fits and isinstance(row_hash, str) and HASH.fullmatch(row_hash):
            return InspectedRow(row, int(row_hash, 16), is_too_long)
    raise HttpError(400, f"inspected.{part[:80]}: a row is [number, hash, whether it is too long], of a known dataset")


def finished(frame: Frame) -> tuple[str, dict[str, int], list[Result]]:
    """The worker, its counters since its start, and the results of its leases."""
    worker, bodies = name(frame.header, "worker"), body_field(frame.header, "results", list)
    counts = body_field(frame.header, "counts", dict, {})
    for key in counts:
        if key not in COUNTERS:
            raise HttpError(400, f"counts: unknown counter {key[:80]!r}; expected {', '.join(COUNTERS)}")
        body_int(counts, key)
    num_done = sum(isinstance(each, dict) and each.get("status") == DONE for each in bodies)
    if num_done != len(frame.blobs):
        raise HttpError(400, f"results: {num_done} are done, but the frame has arrays of {len(frame.blobs)}")
    blobs = iter(frame.blobs)
    return worker, counts, [_result(each, blobs) for each in bodies]


def _result(body: Any, blobs: Any) -> Result:
    """Copies the arrays of a result, so that it does not keep the whole message in memory."""
    status = body_field(body, "status", str)
    if status not in STATUSES:
        raise HttpError(400, f"status: {status[:80]!r} must be one of {', '.join(STATUSES)}")
    timings = body_field(body, "timings", dict, {})
    _each(timings, "timings", is_finite)
    facts = body_field(body, "facts", list, [])
    if status == DONE:
        _check_facts(facts)
    return Result(
        lease=body_field(body, "lease", str),
        status=status,
        facts=facts if status == DONE else [],
        blob=bytes(next(blobs)) if status == DONE else b"",
        error=stored_error(body_field(body, "error", str, "")),
        error_kind=body_field(body, "error_kind", str, ""),
        timings=timings,
        texts=_texts(
            body_field(body, "texts", dict, {}), len(set(conversation_numbers(facts))) if status == DONE else 0
        ),
    )


def _texts(texts: dict[str, Any], num_answers: int) -> dict[str, Any]:
    """Of an evaluation."""
    if not texts:
        return {}
    body_field(texts, "prompt", str)
    answers = body_field(texts, "answers", list)
    if len(answers) != num_answers or not all(isinstance(each, str) for each in answers):
        raise HttpError(400, f"texts: answers must be {num_answers} strings, one per conversation")
    return texts


def _check_facts(facts: Sequence[Any]) -> None:
    if not facts:
        raise HttpError(400, "facts: a result that is done needs the facts of at least one sample")
    for fact in facts:
        for key in INTEGER_FACTS:
            body_int(fact, key)
        for key in OPTIONAL_INTEGER_FACTS:
            if key in fact:
                body_int(fact, key)
        if not fact["version_min"] <= fact["version_max"]:
            raise HttpError(400, f"version_min: {fact['version_min']} is above version_max={fact['version_max']}")
        if "reward" not in fact or not (fact["reward"] is None or is_finite(fact["reward"])):
            raise HttpError(400, "reward: missing from the facts of a sample, or neither a finite number nor null")
        if body_field(fact, "finish", str) not in FINISHES:
            raise HttpError(400, f"finish: must be one of {', '.join(FINISHES)}")
        _each(body_field(fact, "rewards", dict), "rewards", is_finite)
        _each(body_field(fact, "metrics", dict, {}), "metrics", lambda value: value is None or is_finite(value))
        for key in ("env", "agent", "prompt_hash", "text"):
            body_field(fact, key, str, "")
        if not all(isinstance(each, dict) for each in body_field(fact, "messages", list, [])):
            raise HttpError(400, "messages: each must be an object")
    if all(fact["reward"] is None for fact in facts):
        raise HttpError(400, "reward: a result that is done needs that of at least one sample")


def publication(body: Any) -> dict[str, Any]:
    """The body of /publish; the weights themselves are read later."""
    body_int(body, "version")
    body.setdefault("age_ms", 0)
    body_int(body, "age_ms")
    transport = body_field(body, "transport", str, "disk")
    if transport in FILE_TRANSPORTS:
        if "\0" in body_field(body, "folder", str):
            raise HttpError(400, "folder: not a path")
    elif transport == "collective":
        body_field(body, "index", dict)
        sender = body_field(body, "meeting", dict)
        name(sender, "host")
        if not 0 < body_int(sender, "port") < 1 << 16:
            raise HttpError(400, f"port: {sender['port']} is not a port")
        if not all(isinstance(each, str) for each in body_field(sender, "devices", list)):
            raise HttpError(400, "devices: must be a list of strings")
    else:
        raise HttpError(400, f"transport: {transport[:80]!r} must be one of {', '.join(FILE_TRANSPORTS)}, collective")
    checked: dict[str, Any] = body
    return checked


def rank_and_world(body: Any) -> tuple[int, int]:
    """A trainer rank and the number of ranks."""
    rank, world = body_int(body, "rank"), body_int(body, "world", 1)
    if world > MAX_RANKS:
        raise HttpError(400, f"world: {world} ranks are more than the maximum of {MAX_RANKS}")
    if rank >= world:
        raise HttpError(400, f"rank: {rank} is not below world={world}")
    return rank, world


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _each(values: Mapping[str, Any], key: str, fits: Callable[[Any], bool]) -> None:
    for each, value in values.items():
        if not fits(value):
            raise HttpError(400, f"{key}.{each[:80]}: not a finite number")
