"""Weight updates: checked, staged during generation, swapped in, and verified before any answer of the new weights is
returned."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.process.errors import DamagedWeights, Failure
from areal_like.process.pulse import WorkPulse
from areal_like.serving.adapters import Adapters
from areal_like.serving.control_protocol import ADAPTER, KEEP, LOADED, WAIT, UpdateRequest
from areal_like.serving.engines.base import (
    EngineGone,
    InferenceEngine,
    NotApplied,
    NotStaged,
    SwapResult,
    Usage,
    Verification,
    WeightUpdate,
)
from areal_like.serving.expected_tensors import ExpectedTensors
from areal_like.serving.generation import Generation
from areal_like.serving.loaded_weights import digest_of, verify_loaded
from areal_like.serving.pauser import Pauser
from areal_like.serving.probe_check import ProbeCheck
from areal_like.serving.request_queue import RequestQueue
from areal_like.serving.served_weights import ServedWeights
from areal_like.weights.adapter import read_adapter
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights, GroupBroken, with_layer
from areal_like.weights.index import Bucket, Index, read_index
from areal_like.weights.probe import Probe
from areal_like.weights.verify import verify_index, verify_publication

UPDATE = "update"
"""Pause owner: a weight update."""

log = logging.getLogger(__name__)


class StagedUpdate(NamedTuple):
    """Weights that are loaded beside the live ones. `is_wanted`: whether the attempt that sent them is not over."""

    request: UpdateRequest
    update: WeightUpdate
    load_s: float
    is_wanted: Callable[[], bool]


class WeightUpdater:
    """One update at a time. A fault before the swap is a ValueError, and the old weights stay live, as they do if the
    engine takes the swap back. After another fault in the swap, or if verification fails, a Failure ends the server,
    which serves nothing any more."""

    def __init__(
        self,
        engine: InferenceEngine,
        generation: Generation,
        queue: RequestQueue,
        pauser: Pauser,
        served: ServedWeights,
        expected: ExpectedTensors,
        adapters: Adapters,
        probe_check: ProbeCheck,
        work: WorkPulse,
        run_id: str | None,
    ) -> None:
        """`run_id`: the run whose weights are accepted, None for any."""
        self._engine, self._generation, self._queue = engine, generation, queue
        self._pauser, self._served, self._adapters = pauser, served, adapters
        self._expected, self._run_id, self._probe_check = expected, run_id, probe_check
        generation.on_adapter_released = adapters.start_unloading
        self._lock = asyncio.Lock()
        self._staged: StagedUpdate | None = None
        self._update: WeightUpdate | None = None
        self._result: dict[str, Any] = {}
        """The response to the last completed update."""
        self._unverified: list[str] = []
        self._usage = Usage(0, 0.0)
        self._work = work

    async def update(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """`is_wanted` is called again before the swap: the attempt that sent the update may be over by then."""
        async with self._lock:
            if request.transport == LOADED:
                return await self._serve_loaded(request, is_wanted)
            if request.transport == ADAPTER and not self._engine.picks_adapter:
                return await self._load_adapter(request, is_wanted)
            self._pauser.resolve_mode(request.mode)
            await self._stage(request, is_wanted)
            return await self._commit(request.version, request.mode, request.probe, is_wanted)

    async def stage(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """Replaces what was staged before."""
        async with self._lock:
            self._pauser.resolve_mode(request.mode)
            await self._stage(request, is_wanted)
            return {"staged": request.version}

    async def commit(
        self, version: int, mode: str | None, probe: Probe | None, is_wanted: Callable[[], bool]
    ) -> dict[str, Any]:
        async with self._lock:
            return await self._commit(version, mode, probe, is_wanted)

    def forget(self) -> None:
        """The run went back to a checkpoint."""
        self._staged, self._result = None, {}
        self._served.forget()

    async def fingerprint(self) -> dict[str, Any]:
        """Hashes of the served weights, read again from the engine."""
        async with self._lock:
            infos, folder = ((), None) if self._update is None else (self._update.index.tensors, _folder(self._update))
            with self._work.running():
                check = await self._engine.verify(infos, folder)
            uncovered = check.uncovered or self._unverified
            result = {"version": self._served.reported_version, "tensors": check.hashes, "uncovered": uncovered}
            return result | ({"wrong": check.wrong} if check.wrong else {})

    # Staging.

    async def _stage(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> None:
        began = time.perf_counter()
        await self._drop_staged()
        with self._work.running():
            update = await asyncio.to_thread(self._checked, request)
        try:
            with self._work.running():
                await self._engine.stage(update)
        except (ValueError, GroupBroken, EngineGone):
            await self._discard_after_fault()
            raise
        self._staged = StagedUpdate(request, update, time.perf_counter() - began, is_wanted)

    def _checked(self, request: UpdateRequest) -> WeightUpdate:
        """Also checks the hashes of files, unless the engine does."""
        newer_than = self._served.reported_version
        if request.transport == ADAPTER:
            assert request.folder is not None, "parse_update requires it"
            adapter = read_adapter(request.folder, newer_than, self._run_id, request.version)
            return WeightUpdate(request.version, read_index(request.folder), request.folder, adapter=adapter)
        index = self._checked_index(request, newer_than)
        if index.version != request.version:
            raise BadWeights(f"{request.folder or 'the index'} is of version {index.version} and not {request.version}")
        return WeightUpdate(request.version, index, request.folder, request.rendezvous)

    def _checked_index(self, request: UpdateRequest, newer_than: int) -> Index:
        index = request.index if request.folder is None else read_index(request.folder)
        assert index is not None, "parse_update requires it"
        expected = self._expected.of(index)
        if request.folder is None or self._engine.hashes_files:
            verify_index(index, expected, newer_than, self._run_id)
        else:
            verify_publication(request.folder, expected, newer_than, self._run_id)
        return index

    async def _drop_staged(self) -> None:
        if self._staged is not None:
            self._staged = None
            await self._engine.discard()

    async def _discard_after_fault(self) -> None:
        """The fault is what counts, even if the engine cannot discard."""
        with contextlib.suppress(EngineGone, ValueError):
            await self._engine.discard()

    # Swapping.

    async def _commit(
        self, version: int, mode: str | None, probe: Probe | None, is_wanted: Callable[[], bool]
    ) -> dict[str, Any]:
        staged = self._staged
        if self._result.get("version") == version == self._served.reported_version:
            return self._result  # only the response was lost
        if staged is None or staged.update.version != version:
            raise NotStaged(f"version {version} of the weights was not staged here, or is no longer")
        if not (is_wanted() and staged.is_wanted()):
            await self._drop_staged()
            raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
        update, self._staged = staged.update, None
        probe = probe or staged.request.probe or update.index.probe
        mode = KEEP if update.adapter is not None else self._pauser.resolve_mode(mode or staged.request.mode)
        swap = await self._swap(update, mode, probe)
        if not is_wanted():
            self._served.mark_verified()
            self._served.forget()
            raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
        self._update, self._unverified = update, []
        if update.adapter is None:
            self._expected.accept(update.index)
        self._served.mark_verified()
        await self._adapters.unload_unused()
        self._result = self._report(version, update.index.tensors, staged.load_s, swap)
        return self._result

    async def _swap(self, update: WeightUpdate, mode: str, probe: Probe | None) -> SwapResult:
        """With the time during which the engine did not generate."""
        began = time.perf_counter()
        try:
            if self._must_pause(mode):
                await self._pauser.pause(UPDATE, mode)
                await self._generation.aborts_sent()
                if mode == WAIT:
                    began = time.perf_counter()  # until now it generated
        except BaseException:
            await self._pauser.resume(UPDATE)
            await self._discard_after_fault()
            raise
        try:
            with self._work.running():
                swap = await self._engine.commit(update, probe)
            if swap is not None and probe is not None:
                self._probe_check.check(probe, swap.probe_logprobs, update.index.tensors)
            self._served.mark_swapped(update.version)
            await self._pauser.resume(UPDATE)
        except (NotStaged, NotApplied):
            await self._pauser.resume(UPDATE)
            await self._discard_after_fault()
            raise
        except DamagedWeights as fault:
            self._break(str(fault))
            raise
        except BadWeights as fault:
            self._break(str(fault))
            raise DamagedWeights(update.version, str(fault)) from fault
        except Exception as fault:
            reason = f"loading version {update.version} of the weights failed half-way: {fault}"
            self._break(reason)
            raise Failure(reason) from fault
        if swap is not None:
            return swap
        return await self._verify(update, probe, time.perf_counter() - began)

    def _must_pause(self, mode: str) -> bool:
        return not (self._engine.commits_while_generating and (mode == KEEP or self._pauser.is_paused))

    # Verification.

    async def _verify(self, update: WeightUpdate, probe: Probe | None, stall_s: float) -> SwapResult:
        """Reads the served weights back and computes the probe with them. Answers are held back meanwhile."""
        try:
            async with self._pauser.resumed():
                with self._work.running():
                    check = await self._engine.verify(update.index.tensors, _folder(update))
                _compare(update, check)
                logprobs: list[float] = []
                if probe is not None:
                    logprobs = await self._engine.logprobs(probe.token_ids)
                    self._probe_check.check(probe, logprobs, update.index.tensors)
        except BadWeights as fault:
            self._break(str(fault))
            raise DamagedWeights(update.version, str(fault)) from fault
        except Exception as fault:
            reason = f"version {update.version} of the weights was loaded and could not be verified: {fault}"
            self._break(reason)
            raise Failure(reason) from fault
        return SwapResult(stall_s, check, logprobs)

    def _break(self, reason: str) -> None:
        log.error("this server serves nothing any more, and ends: %s", reason)
        self._queue.hold("broken")
        self._served.mark_broken(reason)

    async def _load_adapter(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        assert request.folder is not None, "parse_update requires it"
        began = time.perf_counter()
        adapter, logprobs = await self._adapters.load(
            request.folder, request.version, self._run_id, request.probe, is_wanted
        )
        self._update = None
        infos = adapter.files.infos
        self._unverified = [info.name for info in infos]  # an adapter that is loaded by name is not shown
        swap = SwapResult(0.0, Verification(uncovered=self._unverified), logprobs)
        return self._report(request.version, infos, time.perf_counter() - began, swap)

    async def _serve_loaded(self, request: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """The weights with which the engine started become a version: nothing is loaded, and all that the engine shows
        is compared with the files of the model. Other weights stay as they are: they may belong to another run."""
        assert request.folder is not None, "parse_update requires it"
        version, began = request.version, time.perf_counter()
        await self._drop_staged()
        if self._result.get("version") == version == self._served.reported_version:
            return self._result  # only the response was lost
        with self._work.running():
            tensors, check = await verify_loaded(self._engine, request.folder)
        if not is_wanted():
            raise ValueError(f"version {version}: the run was started again meanwhile")
        self._update = WeightUpdate(version, Index(version, "loaded", [Bucket("", 0, "", tensors)], None))
        self._unverified = check.uncovered
        await self._engine.name_version(version)
        self._served.mark_swapped(version)
        self._served.mark_verified()
        report = self._report(version, tensors, time.perf_counter() - began, SwapResult(0.0, check, []))
        self._result = report | {"digest": digest_of(tensors)}
        return self._result

    def _report(self, version: int, infos: Sequence[TensorInfo], load_s: float, swap: SwapResult) -> dict[str, Any]:
        usage = self._engine.usage or Usage(self._generation.counts.tokens, self._queue.busy_s)
        generated = {"tokens": usage.tokens - self._usage.tokens, "busy_s": usage.busy_s - self._usage.busy_s}
        self._usage, uncovered, info = usage, swap.check.uncovered, self._engine.info
        return {
            "version": version,
            "stall_s": swap.stall_s,
            "load_s": load_s,
            "probe_logprobs": swap.probe_logprobs,
            **{"engine": f"{info.engine} {info.version}", "processes": info.processes},
            "dtype": self._probe_check.dtype,
            "tensors": len(infos),
            "generated": generated,
            "read_back": {"covered": len({info.name for info in infos} - set(uncovered)), "uncovered": uncovered},
        }


def _compare(update: WeightUpdate, check: Verification) -> None:
    published = {info.name: info.hash for info in update.index.tensors}
    wrong = dict(check.wrong)
    for name, served in check.hashes.items():
        if name not in wrong and served != published.get(name):
            wrong[name] = f"the served tensor (hash {served}) is not the published one ({published.get(name)})"
    if wrong:
        first, *others = wrong
        more = f"; and {len(others)} more" if others else ""
        raise BadWeights(f"version {update.version} of the weights: {with_layer(first)}: {wrong[first]}{more}")


def _folder(update: WeightUpdate) -> Path | None:
    """None once it is removed, as folders of old versions are."""
    return update.folder if update.folder is not None and update.folder.is_dir() else None
