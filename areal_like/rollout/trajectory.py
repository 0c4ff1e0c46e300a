"""Trajectory: one sample on its way from a conversation to the trainer, as token ids with logprobs and weight versions.

Text is derived from token ids, never the reverse. The controller reads only the small facts of a trajectory and passes
its arrays on unread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray
from safetensors.numpy import load

from areal_like.process.plain_json import plain_json, plain_text

FINISHES = ("stop", "length", "abort")
ARRAYS: dict[str, Any] = {
    "token_ids": np.int32,
    "loss_mask": np.uint8,
    "logprobs": np.float32,
    "versions": np.int32,
}
"""The arrays of a trajectory, all of one length, with their types."""
STORED: dict[str, tuple[str, np.dtype[Any]]] = {
    "logprobs": ("F32", np.dtype("<f4")),
    "lengths": ("I32", np.dtype("<i4")),
    "token_ids": ("I32", np.dtype("<i4")),
    "versions": ("I32", np.dtype("<i4")),
    "loss_mask": ("U8", np.dtype("u1")),
}
"""The arrays of a group with their types, in the order in which safetensors writes them."""
LEAST_LOGPROB = -1000.0
"""Nothing as unlikely as this is sampled: in 32 bits a chance is 0 from about -104. Engines write -9999 where they have
none. 0 may be right, as for a token that has no alternative."""
TURNS, TEMPLATE_BREAKS = "turns", "template_breaks"
"""Metrics of a trajectory that comes from a conversation: its answers, and how often the chat template rewrote them."""


@dataclass(eq=False)
class Trajectory:
    """A sequence of T tokens. The controller assigns its group."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    """1 for tokens in the loss: those that the model generated."""
    logprobs: NDArray[np.float32]
    """Of the distribution that was sampled from; 0 outside of the loss."""
    versions: NDArray[np.int32]
    """Version of the weights that generated the token; -1 if it was not generated."""
    reward: float | None
    """None if it failed: the tokens are then not in the loss."""
    rewards: dict[str, float] = field(default_factory=dict)
    """The named parts of the reward, before any shaping."""
    finish: str = "stop"
    """`stop`, `length` (cut off) or `abort`."""
    env: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    conversation: int | None = None
    """A number that all samples of one conversation have; None for a sample that is one by itself."""
    agent: str = ""
    """Of a conversation of several agents: the one that this sample is of. It is compared with the same one in the
    other conversations of its group."""
    run: int = 0
    """Which run of this agent it is of, in a conversation where it runs more than once."""
    messages: list[dict[str, Any]] | None = None
    """The conversation as messages, for people to read: of its last sample, or of each of an agent."""
    text: str | None = None
    """A single answer as its reward reads it, without the text or token that stopped it, for people to read and to be
    scored again. None: the text of the tokens, as for a conversation."""

    def __post_init__(self) -> None:
        for name, dtype in ARRAYS.items():
            setattr(self, name, np.asarray(getattr(self, name), dtype=dtype))

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """The tokens before the first generated one."""
        generated = self.versions >= 0
        return self.token_ids[: generated.argmax()] if generated.any() else self.token_ids

    @property
    def observed_in_loss(self) -> int:
        """Tokens in the loss that were not generated."""
        return int(np.count_nonzero((self.loss_mask != 0) & (self.versions < 0)))

    def problem(self, may_train_observed: bool = False) -> str | None:
        """Why it cannot be trained on; None if it can."""
        arrays = (self.token_ids, self.loss_mask, self.logprobs, self.versions)
        if self.token_ids.ndim != 1 or any(array.shape != self.token_ids.shape for array in arrays):
            shapes = {name: getattr(self, name).shape for name in ARRAYS}
            return f"its arrays must all be flat and of one length, but are {shapes}"
        generated, in_loss = self.versions >= 0, self.loss_mask != 0
        if not generated.any():
            return "it has no generated token: `versions` is -1 everywhere"
        if not may_train_observed and (in_loss & ~generated).any():
            return "`loss_mask` is on for tokens that were not generated (`versions` is -1 there)"
        if not np.isfinite(self.logprobs).all():
            return "`logprobs` are not all finite"
        least = self.logprobs.min(where=in_loss & generated, initial=0)
        if least < LEAST_LOGPROB:
            return f"`logprobs` holds {least:g} for a generated token: a stand-in for one that is missing"
        if self.finish not in FINISHES:
            return f"`finish` is {self.finish!r}; it must be one of {', '.join(FINISHES)}"
        for name, value in {"reward": self.reward, **self.rewards}.items():
            if value is not None and not math.isfinite(value):
                return f"its reward {name!r} is {value}; a reward must be a finite number"
        return None


def prompt_hash(ids: Sequence[int] | NDArray[np.int32]) -> str:
    """Equal for equal prompt ids in every process and run."""
    return xxhash.xxh3_64_hexdigest(np.asarray(ids, dtype="<i4").tobytes())


def pack_group(
    trajectories: Sequence[Trajectory], may_train_observed: bool = False, with_texts: bool = True
) -> tuple[list[dict[str, Any]], bytes]:
    """The small facts of each trajectory, and all arrays as one safetensors file (concatenated, with `lengths`). Raises
    ValueError for a trajectory that cannot be trained on. Without `with_texts` the facts have no `text`."""
    if not trajectories:
        raise ValueError("a group needs at least one trajectory; a workflow that has none returns None")
    for index, trajectory in enumerate(trajectories):
        if problem := trajectory.problem(may_train_observed):
            raise ValueError(f"trajectory {index} of {len(trajectories)} cannot be used: {problem}")
    trajectories = [each if each.reward is not None else _masked(each) for each in trajectories]
    arrays = {name: _joined([getattr(each, name) for each in trajectories]) for name in ARRAYS}
    arrays["lengths"] = np.array([len(each.token_ids) for each in trajectories], dtype=np.int32)
    return [_facts(each, with_texts) for each in trajectories], _stored(arrays)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """A group of an evaluation is often one answer, for which a copy would be a large part of the work."""
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _stored(arrays: dict[str, NDArray[Any]]) -> bytes:
    """What safetensors writes, byte for byte. Its own function takes several times as long for arrays this small."""
    header, parts, end = dict[str, Any](), list[bytes](), 0
    for name, (kind, dtype) in STORED.items():
        array = arrays[name].astype(dtype, copy=False)  # a workflow may have assigned arrays of other types
        parts.append(array.tobytes())
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (end, end := end + array.nbytes)}
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _masked(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, loss_mask=np.zeros_like(trajectory.loss_mask))


def _facts(trajectory: Trajectory, with_text: bool) -> dict[str, Any]:
    is_generated = trajectory.versions >= 0
    generated = trajectory.versions[is_generated]
    return {
        "reward": None if trajectory.reward is None else float(trajectory.reward),
        "rewards": {name: float(value) for name, value in trajectory.rewards.items()},
        "finish": trajectory.finish,
        "length": len(trajectory.token_ids),
        "generated": len(generated),
        "loss_tokens": int(np.count_nonzero(trajectory.loss_mask)),
        "version_min": int(generated.min()),
        "version_max": int(generated.max()),
        "metrics": {name: float(value) for name, value in trajectory.metrics.items()},
        "env": trajectory.env,
        "prompt_hash": prompt_hash(trajectory.token_ids[: is_generated.argmax()]),
        **({} if trajectory.conversation is None else {"conversation": trajectory.conversation}),
        **({"agent": trajectory.agent} if trajectory.agent else {}),
        **({"run": trajectory.run} if trajectory.run else {}),
        **({"observed_in_loss": observed} if (observed := trajectory.observed_in_loss) else {}),
        **({} if trajectory.messages is None else {"messages": plain_json(trajectory.messages)}),
        **({} if trajectory.text is None or not with_text else {"text": plain_text(trajectory.text)}),
    }


def unpack_group(facts: Sequence[dict[str, Any]], blob: bytes | bytearray | memoryview) -> list[Trajectory]:
    """The inverse of `pack_group`."""
    arrays = load(bytes(blob))
    ends = np.cumsum(arrays["lengths"])
    if len(ends) != len(facts):
        raise ValueError(f"a group of {len(facts)} samples came with arrays for {len(ends)}")
    trajectories = []
    for fact, end, length in zip(facts, ends, arrays["lengths"], strict=True):
        parts = {name: arrays[name][end - length : end] for name in ARRAYS}
        trajectories.append(
            Trajectory(
                **parts,
                reward=fact["reward"],
                rewards=dict(fact["rewards"]),
                finish=fact["finish"],
                env=fact.get("env", ""),
                metrics=dict(fact["metrics"]),
                conversation=fact.get("conversation"),
                agent=fact.get("agent", ""),
                run=fact.get("run", 0),
                messages=fact.get("messages"),
                text=fact.get("text"),
            )
        )
    return trajectories
