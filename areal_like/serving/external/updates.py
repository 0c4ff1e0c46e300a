"""New weights for an engine: checked before they come near it, brought near beside generation, swapped in while it
rests, and looked at once more before anything that they made is let out."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from areal_like.process.errors import NOT_STAGED, Failure, HttpError
from areal_like.serving.control_protocol import ADAPTER, WAIT, UpdateRequest
from areal_like.serving.external.adapters import Adapters
from areal_like.serving.external.base import InferenceEngine, NotStaged, Verification, WeightUpdate
from areal_like.serving.external.expected_tensors import ExpectedTensors
from areal_like.serving.external.generation import Generation
from areal_like.serving.external.pauser import Pauser
from areal_like.serving.external.request_queue import RequestQueue
from areal_like.serving.external.served_weights import ServedWeights
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights, GroupBroken, with_layer
from areal_like.weights.index import Index, read_index
from areal_like.weights.probe import Probe, check_probe
from areal_like.weights.verify import verify_index, verify_publication

UPDATE = "update"
"""Whose rest it is."""

log = logging.getLogger(__name__)


class StagedUpdate(NamedTuple):
    """Weights that wait near the engine."""

    request: UpdateRequest
    update: WeightUpdate
    load_s: float


class WeightUpdater:
    """One update at a time. A fault before the swap leaves the old weights in use, and is a ValueError that says what
    is wrong. After one in the swap, or when what is in use turns out wrong, nothing is served ever again."""

    def __init__(
        self,
        engine: InferenceEngine,
        generation: Generation,
        queue: RequestQueue,
        pauser: Pauser,
        served: ServedWeights,
        names: ExpectedTensors,
        adapters: Adapters,
        run_id: str | None,
        dtype: str,
    ) -> None:
        """`run_id`: whose weights are taken; None is anybody's. `dtype`: the precision that the engine computes in."""
        self._engine, self._generation, self._queue, self._pauser, self._served = (
            engine,
            generation,
            queue,
            pauser,
            served,
        )
        self._names, self._run_id, self._dtype = names, run_id, dtype
        self._adapters = adapters
        generation.on_adapter_released = self._adapters.look
        self._one = asyncio.Lock()
        self._staged: StagedUpdate | None = None
        self._update: WeightUpdate | None = None
        self._done: dict[str, Any] = {}
        """What was last answered of weights in use."""
        self._unseen: list[str] = []
        self._tokens, self._busy_s = 0, 0.0

    async def update(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """`is_wanted` is asked once more before the swap: who ordered it may be of the past by then."""
        async with self._one:
            if request.transport == ADAPTER:
                return await self._load_adapter(request, is_wanted)
            self._pauser.settled(request.mode)
            await self._stage(request)
            return await self._commit(request.version, request.mode, request.probe, is_wanted)

    async def stage(self, request: UpdateRequest) -> dict[str, Any]:
        """Takes the place of what was staged before."""
        async with self._one:
            self._pauser.settled(request.mode)
            if request.transport == ADAPTER:
                raise ValueError("transport: an adapter is loaded in one step; use update_weights")
            await self._stage(request)
            return {"staged": request.version}

    async def commit(
        self, version: int, mode: str | None, probe: Probe | None, is_wanted: Callable[[], bool]
    ) -> dict[str, Any]:
        async with self._one:
            return await self._commit(version, mode, probe, is_wanted)

    def forget(self) -> None:
        """The run went back to a checkpoint."""
        self._staged, self._done = None, {}
        self._served.forget()

    async def fingerprint(self) -> dict[str, Any]:
        """Of what is in use, read anew."""
        async with self._one:
            update = self._update
            if update is None:
                return {"version": self._served.reported_version, "tensors": {}, "uncovered": self._unseen}
            found = await self._engine.verify(update.index.tensors, _folder(update))
            said = {"version": self._served.reported_version, "tensors": found.hashes, "uncovered": found.uncovered}
            return said | ({"wrong": found.wrong} if found.wrong else {})

    # Before.

    async def _stage(self, request: UpdateRequest) -> None:
        began = time.perf_counter()
        await self._drop_staged()
        index = await asyncio.to_thread(self._checked, request)
        update = WeightUpdate(request.version, index, request.folder, request.meeting)
        try:
            await self._engine.stage(update)
        except (ValueError, GroupBroken):
            await self._engine.discard()
            raise
        self._staged = StagedUpdate(request, update, time.perf_counter() - began)

    def _checked(self, request: UpdateRequest) -> Index:
        """Reads the files where there are some."""
        newer_than = self._served.reported_version
        if request.folder is not None:
            index = read_index(request.folder)
            verify_publication(request.folder, self._names.expected(index), newer_than, self._run_id)
        else:
            assert request.index is not None, "seen to when the order was read"
            index = request.index
            verify_index(index, self._names.expected(index), newer_than, self._run_id)
        if index.version != request.version:
            raise BadWeights(f"{request.folder or 'the index'} is of version {index.version} and not {request.version}")
        return index

    async def _drop_staged(self) -> None:
        if self._staged is not None:
            self._staged = None
            await self._engine.discard()

    # The swap.

    async def _commit(
        self, version: int, mode: str | None, probe: Probe | None, is_wanted: Callable[[], bool]
    ) -> dict[str, Any]:
        staged = self._staged
        if self._done.get("version") == version == self._served.reported_version:
            return self._done  # only the answer was lost
        if staged is None or staged.update.version != version:
            raise HttpError(NOT_STAGED, f"version {version} of the weights was not staged here, or is not any more")
        if not is_wanted():
            await self._drop_staged()
            raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
        update, self._staged = staged.update, None
        stall_s = await self._swap(update, self._pauser.settled(mode or staged.request.mode))
        asked = probe or staged.request.probe or update.index.probe
        found, logprobs = await self._verify(update, asked)
        if not is_wanted():
            self._served.mark_verified()
            self._served.forget()
            raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
        self._update = update
        self._names.served(update.index)
        self._served.mark_verified()
        await self._adapters.unload_unused()
        self._done = self._said(version, update.index.tensors, stall_s, staged.load_s, logprobs, found.uncovered)
        return self._done

    async def _swap(self, update: WeightUpdate, mode: str) -> float:
        """Returns for how long the engine did not generate."""
        began = time.perf_counter()
        try:
            await self._pauser.begin(UPDATE, mode)
            await self._generation.settled()
            if mode == WAIT:
                began = time.perf_counter()  # it has generated until now
        except BaseException:
            await self._pauser.end(UPDATE)
            await self._engine.discard()
            raise
        try:
            await self._engine.commit(update)
            self._served.mark_swapped(update.version)
            await self._pauser.end(UPDATE)
        except NotStaged as fault:
            await self._pauser.end(UPDATE)
            await self._engine.discard()
            raise HttpError(NOT_STAGED, str(fault)) from fault
        except BadWeights as fault:
            self._break(str(fault))
            raise
        except Exception as fault:
            why = f"loading version {update.version} of the weights failed half-way: {fault}"
            self._break(why)
            raise Failure(why) from fault
        return time.perf_counter() - began

    # After.

    async def _verify(self, update: WeightUpdate, probe: Probe | None) -> tuple[Verification, list[float]]:
        """Reads back what is in use, and computes with it. What is generated meanwhile is held back."""
        try:
            async with self._pauser.resumed():
                found = await self._engine.verify(update.index.tensors, _folder(update))
                _compare(update, found)
                logprobs: list[float] = []
                if probe is not None:
                    logprobs = await self._engine.logprobs(probe.token_ids)
                    check_probe(probe, logprobs, self._dtype)
        except BadWeights as fault:
            self._break(str(fault))
            raise
        except Exception as fault:
            why = f"version {update.version} of the weights was loaded, and could not be checked: {fault}"
            self._break(why)
            raise Failure(why) from fault
        return found, logprobs

    def _break(self, why: str) -> None:
        log.error("this server is broken and serves no more: %s", why)
        self._queue.close("broken")
        self._served.mark_broken(why)
        self._generation.end(f"this server is broken: {why}")

    async def _load_adapter(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        assert request.folder is not None, "seen to when the order was read"
        began = time.perf_counter()
        found, logprobs = await self._adapters.load(
            request.folder, request.version, self._run_id, request.probe, is_wanted
        )
        self._update = None
        self._unseen = [info.name for info in found.files.infos]  # no engine of others shows an adapter
        load_s = time.perf_counter() - began
        return self._said(request.version, found.files.infos, 0.0, load_s, logprobs, self._unseen)

    def _said(
        self,
        version: int,
        infos: Sequence[TensorInfo],
        stall_s: float,
        load_s: float,
        logprobs: Sequence[float],
        uncovered: Sequence[str],
    ) -> dict[str, Any]:
        tokens, busy_s = self._generation.counts.tokens, self._queue.busy_s
        generated = {"tokens": tokens - self._tokens, "busy_s": busy_s - self._busy_s}
        self._tokens, self._busy_s = tokens, busy_s
        whole = sum(info.name not in set(uncovered) for info in infos)
        return {
            "version": version,
            "stall_s": stall_s,
            "load_s": load_s,
            "probe_logprobs": list(logprobs),
            "dtype": self._dtype,
            "tensors": len(infos),
            "generated": generated,
            "read_back": {"covered": whole, "uncovered": list(uncovered)},
        }


def _compare(update: WeightUpdate, found: Verification) -> None:
    published = {info.name: info.hash for info in update.index.tensors}
    wrong = dict(found.wrong)
    for name, served in found.hashes.items():
        if name not in wrong and served != published.get(name):
            wrong[name] = f"what is served (hash {served}) is not what was published ({published.get(name)})"
    if wrong:
        first, *others = wrong
        more = f"; and {len(others)} more" if others else ""
        raise BadWeights(f"version {update.version} of the weights: {with_layer(first)}: {wrong[first]}{more}")


def _folder(update: WeightUpdate) -> Any:
    """Where it still lies: old versions are removed once they are served."""
    return update.folder if update.folder is not None and update.folder.is_dir() else None
