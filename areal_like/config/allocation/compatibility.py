"""Combinations of sizes that are impossible, or not supported by this framework."""

from collections.abc import Iterator
from dataclasses import replace

from areal_like.config.allocation.base import (
    AllocationMode,
    BackendSpec,
    ParallelDims,
    ParallelStrategy,
)
from areal_like.config.engines import engine_keys, engine_names, example_engine
from areal_like.config.problems import Problem

FSDP_LIMIT = "It supports only data parallelism (d) so far"


def impossible_sizes(part: BackendSpec, backend: str, key: str, also: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Why `part` is impossible with `backend`; `key` is the key of its sizes."""
    dims, shown = part.dims, replace(part, backend=backend)
    if dims is None:
        return
    if is_one_process(backend) and dims.tensor * dims.pipeline > 1:
        title, num_servers = engine_keys(backend).title, dims.world_size
        yield Problem(
            key,
            f"{shown} is not possible: a server of the {title} engine is one process on one device, so its t and p are "
            f"1. Write {backend}:d{num_servers} for {num_servers} servers, or {example_engine()}:{dims} to divide the "
            "model",
            also=also,
        )
    elif backend == "fsdp" and (part.ffn or dims.pipeline > 1 or dims.expert > 1):
        extra = [f"p{dims.pipeline} (pipeline)"] if dims.pipeline > 1 else []
        extra += [f"e{dims.expert} (expert)"] if dims.expert > 1 else []
        what = " and ".join(extra) if extra else "attention and experts divided differently"
        yield Problem(
            key,
            f"{shown} is not possible: fsdp does not support {what}. {FSDP_LIMIT}; experts are sharded like all "
            f"other weights. Write {as_fsdp(dims)} for the same {devices(dims.world_size)}{_or_one(dims)}",
            also=also,
        )
    elif part.ffn:
        yield from (replace(finding, also=also) for finding in _uneven(part, dims, part.ffn, key))
    elif dims.expert > 1 and dims.world_size % (dims.pipeline * dims.expert):
        within = f" (in each of the {dims.pipeline} stages of p{dims.pipeline})" if dims.pipeline > 1 else ""
        share = dims.world_size // dims.pipeline
        yield Problem(
            key,
            f"{shown} is not possible: e{dims.expert} does not divide the {devices(share)}{within}. "
            f"Allowed: {_divisors(share)}",
            also=also,
        )


def _uneven(part: BackendSpec, attention: ParallelDims, experts: ParallelDims, key: str) -> Iterator[Problem]:
    expert_world = experts.data * experts.tensor * experts.pipeline * experts.expert
    if attention.pipeline != experts.pipeline:
        yield Problem(
            key,
            f"{part} is not possible: attn has p{attention.pipeline} and ffn has p{experts.pipeline}, but both are in "
            f"the same pipeline stages. Give both the same p",
        )
    elif attention.world_size != expert_world:
        yield Problem(
            key,
            f"{part} is not possible: attn spans {devices(attention.world_size)} (d*t*p*c) and ffn spans "
            f"{devices(expert_world)} (d*t*p*e), but they are the same devices. Leave out the d of ffn and it "
            f"follows, if t*p*e of ffn divides {attention.world_size}",
        )


def colocation_problem(mode: AllocationMode, key: str) -> Problem:
    """Why servers and trainers cannot share devices, and what to write."""
    rollout, train = mode.rollout, mode.train
    if rollout and train and rollout.dims and train.dims and not train.ffn:
        halves = rollout.dims.data % 2 == 0 and train.dims.data % 2 == 0
        if halves and rollout.dims.world_size == train.dims.world_size:
            rollout = replace(rollout, dims=replace(rollout.dims, data=rollout.dims.data // 2))
            train = replace(train, dims=replace(train.dims, data=train.dims.data // 2))
    return Problem(
        key,
        f"{mode} puts servers and trainers on the same devices ('|'), which is not supported: each needs its own. "
        f"Write {rollout}+{train}, or {key}=auto (on a machine with one GPU both share it then)",
    )


def contradiction_problem(
    own_key: str, own: BackendSpec, mode_key: str, mode: AllocationMode, from_mode: BackendSpec
) -> Problem:
    """Two keys with different values for the same role."""
    kept = _possible(merge_specs(own, from_mode))
    fixed = replace(mode, rollout=kept) if from_mode is mode.rollout else replace(mode, train=kept)
    return Problem(
        own_key,
        f"{own_key}={own} and {mode_key}={mode} contradict each other: {own} in one, {from_mode} in the other. "
        f"Set one of them: {own_key}=auto keeps {from_mode}, {mode_key}={fixed} keeps {kept}",
        also=(mode_key,),
    )


def _possible(part: BackendSpec) -> BackendSpec:
    """The same number of devices in sizes that the engine supports."""
    if part.dims and is_one_process(part.backend):
        return BackendSpec(part.backend, ParallelDims(data=part.dims.world_size))
    if part.dims and part.backend == "fsdp":
        return BackendSpec(part.backend, _fsdp_sizes(part.dims))
    return part


def specs_differ(own: BackendSpec, from_mode: BackendSpec) -> bool:
    """Whether two parts have different engines or sizes; open ones do not differ."""
    names = own.backend and from_mode.backend and own.backend != from_mode.backend
    sizes = own.dims and from_mode.dims and (own.dims, own.ffn) != (from_mode.dims, from_mode.ffn)
    return bool(names or sizes)


def merge_specs(own: BackendSpec, from_mode: BackendSpec) -> BackendSpec:
    """`own`, completed by `from_mode`."""
    sizes = own if own.dims else from_mode
    return BackendSpec(own.backend or from_mode.backend, sizes.dims, sizes.ffn)


def unsupported(parallel: ParallelStrategy, key: str, also: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Why this framework cannot start a valid allocation."""
    if parallel.backend == "megatron":
        yield Problem(
            key,
            f"{parallel} needs megatron, which is not a backend of this framework. Use fsdp: {as_fsdp(parallel)} "
            f"takes the same {devices(parallel.world_size)}{_or_one(parallel)}",
            also=also,
        )
    if parallel.backend in engine_names() and parallel.pipeline > 1:
        divided = replace(parallel, tensor=parallel.tensor * parallel.pipeline, pipeline=1)
        yield Problem(
            key,
            f"{parallel} needs servers with a pipeline (p{parallel.pipeline}), into which weights cannot be loaded "
            f"while they run. Use tensor parallelism: {divided} takes the same {devices(parallel.world_size)}",
            also=also,
        )


def is_one_process(backend: str | None) -> bool:
    """Whether each server of this backend is one process on one device."""
    return backend in engine_names() and engine_keys(backend).dims == "d"


def as_fsdp(dims: ParallelDims) -> str:
    return f"fsdp:{_fsdp_sizes(dims)}"


def _or_one(dims: ParallelDims) -> str:
    """A hint at sizes that fit any machine."""
    return "" if dims.world_size == 1 else ", on a machine that has them; fsdp:d1 starts on any"


def _fsdp_sizes(dims: ParallelDims) -> ParallelDims:
    """The same number of devices, data-parallel: the trainer supports nothing else so far."""
    return ParallelDims(data=dims.world_size)


def devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _divisors(number: int) -> str:
    some = [f"e{size}" for size in range(2, min(number, 64) + 1) if number % size == 0]
    return f"{', '.join(some)} or no e" if some else "no e at all"
