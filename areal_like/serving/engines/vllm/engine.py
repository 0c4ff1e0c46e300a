"""The vLLM engine of a run, driven by vLLM's routes (0.32)."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_like.config.sections.engines.vllm import KEYS
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.control_protocol import KEEP
from areal_like.serving.engines.base import (
    EngineGone,
    EngineInfo,
    GenerateOutput,
    GenerateRequest,
    Verification,
    WeightUpdate,
)
from areal_like.serving.engines.external.external_engine import ExternalEngine, IncompatibleEngine
from areal_like.serving.engines.external.installations import unsupported_version
from areal_like.serving.engines.external.model_files import eos_token_ids, vocab_size
from areal_like.serving.engines.vllm.distribution import DISTRIBUTION
from areal_like.serving.engines.vllm.requests import is_greedy, logprob_of, parse_output, prompt_logprobs, request_body
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import dump_index
from areal_like.weights.probe import Probe

GENERATE = "/inference/v1/generate"
REQUEST_PREFIX = "generate-tokens-"
"""vLLM's prefix of request ids on that route; `/abort_requests` needs it."""
MIN_POLL_S, MAX_POLL_S = 0.002, 0.02
SHARE_UNPOLLED = 0.8
"""Share of the time of the last weights in which it is not polled whether new ones are staged: polls take time from
generation."""
GAUGES = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generated_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
}
START_HINT = (
    "start it with VLLM_SERVER_DEV_MODE=1, --enable-scale-out, --logprobs-mode processed_logprobs and "
    "--worker-extension-cls areal_like.serving.engines.vllm.plugin.worker.WorkerExtension"
)


class VLLMEngine(ExternalEngine):
    start_hint = START_HINT
    native_pauses = frozenset((KEEP,))

    def __init__(
        self, address: str, secret: str, config: Any, model_folder: Path, proofs: ProofVerifier | None = None
    ) -> None:
        super().__init__(KEYS, config, address, secret, proofs)
        self.hashes_files = not config.vllm.worker_extension_cls  # ours does
        self._folder = model_folder
        self._staging_s = 0.0
        """Seconds in which the workers staged the last weights."""
        self._has_version = False
        """Whether vLLM was given the version of its weights."""

    async def get_ready(self) -> None:
        self.info = await self.read_info()
        await self._check_extension()
        self.info = self.info._replace(devices=await self._devices())
        await self.generate_token()

    async def _check_extension(self) -> None:
        try:
            await self._workers("areal_discard")
        except EngineGone as fault:
            raise IncompatibleEngine(f"it cannot take new weights ({fault}); {START_HINT}") from fault

    async def _devices(self) -> tuple[str, ...]:
        """The GPU of each worker; nothing if one of them has none."""
        if not self.hashes_files:  # an extension of the user's
            return ()
        workers = sorted(await self._workers("areal_devices"), key=lambda worker: worker["rank"])
        devices = [device for worker in workers for device in worker["devices"]]
        return tuple(devices) if len(devices) == len(workers) else ()

    async def read_info(self) -> EngineInfo:
        version = str((await self.calls.get("/version"))["version"])
        if (reason := unsupported_version(DISTRIBUTION, version)) is not None:
            raise IncompatibleEngine(f"vllm.python: {reason}")
        cards = (await self.calls.get("/v1/models"))["data"]
        card = next(card for card in cards if card.get("parent") is None)
        return EngineInfo(
            engine="vllm",
            version=version,
            model=card["root"],
            context_length=card["max_model_len"],
            vocab_size=vocab_size(self._folder),
            eos_token_ids=eos_token_ids(self._folder),
            processes=int((await self.calls.get("/get_world_size?include_dp=false"))["world_size"]),
            dtype=self.dtype,
            length_key=KEYS.length_key,
        )

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]:
        has_version, is_adapter = self._has_version, request.adapter is not None
        response = await self.calls.post(GENERATE, request_body(request, self.info))
        outputs = {choice["index"]: parse_output(choice, is_adapter, has_version) for choice in response["choices"]}
        if is_greedy(request):
            return [outputs[0]] * request.n
        return [outputs.get(index, GenerateOutput([], [], "abort", [])) for index in range(request.n)]

    async def abort(self, ids: Sequence[str] | None) -> None:
        body = {} if ids is None else {"request_ids": [REQUEST_PREFIX + id for id in ids]}
        if body or ids is None:
            await self.calls.post("/abort_requests", body)

    async def pause(self, mode: str) -> None:
        await self.calls.post("/pause?mode=keep")

    async def resume(self) -> None:
        await self.calls.post("/resume")

    async def stage(self, update: WeightUpdate) -> None:
        message = {
            "index": dump_index(update.index),
            "folder": None if update.folder is None else str(update.folder),
            "meeting": None if update.rendezvous is None else update.rendezvous._asdict(),
        }
        await self._workers("areal_stage", json.dumps(message))
        await asyncio.sleep(SHARE_UNPOLLED * self._staging_s)
        results = await self._results("areal_staged")
        self._staging_s = max(result.get("seconds", 0.0) for result in results)

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> None:
        """The key-value cache of frozen requests is of the old weights: it is dropped, and vLLM computes it again after
        the pause."""
        for result in await self._workers("areal_commit", str(update.version)):
            _check(result)
        version = {"new_version": str(update.version)}
        _, done = await asyncio.gather(
            self.calls.post("/update_weight_version", version),
            self.calls.post("/reset_prefix_cache?reset_running_requests=true&reset_external=true"),
        )
        self._has_version = True
        if not done["success"]:
            raise EngineGone("vLLM did not drop its cache of the old weights")

    async def discard(self) -> None:
        await self._workers("areal_discard")

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        await self._workers("areal_read_back", json.dumps([list(info) for info in infos]))
        check = Verification()
        for result in await self._results("areal_seen", MIN_POLL_S):
            check.hashes |= result["hashes"]
            check.wrong |= result["wrong"]
        check.uncovered = [info.name for info in infos if info.name not in check.hashes]
        return check

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        if adapter is not None:
            places = range(1, len(token_ids))
            return await asyncio.gather(*(self._next_logprob(token_ids[:at], token_ids[at], adapter) for at in places))
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        response = await self.calls.post(GENERATE, {"token_ids": list(token_ids), "sampling_params": sampling})
        return prompt_logprobs(response["prompt_logprobs"], list(token_ids))

    async def _next_logprob(self, prompt: Sequence[int], token: int, adapter: str) -> float:
        """With an adapter each is requested as that of the first token of an answer: for those of a prompt vLLM applies
        the adapter's head to rows of other requests, and crashes on a CPU."""
        sampling: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "detokenize": False}
        sampling |= {"logprobs": 2, "logprob_token_ids": [token, token]}  # the sampled one counts as one of the two
        body = {"token_ids": list(prompt), "sampling_params": sampling, "model": adapter}
        return logprob_of(token, await self.calls.post(GENERATE, body))

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self.calls.read("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        await self.calls.read("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def statistics(self) -> dict[str, Any]:
        text = (await self.calls.read("GET", "/metrics")).decode()
        return {key: sum(_values(text, name)) for key, name in (GAUGES | COUNTERS).items()}

    async def _workers(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        """Calls a method of our extension in every worker."""
        response = await self.calls.post("/collective_rpc", {"method": method, "args": arguments})
        results: list[dict[str, Any]] = response["results"]
        return results

    async def _results(self, method: str, max_pause_s: float = MAX_POLL_S) -> list[dict[str, Any]]:
        """Polls until the work started before is done in all workers."""
        pause_s = MIN_POLL_S
        while True:
            results = await self._workers(method)
            if not any(result.get("busy") for result in results):
                for result in results:
                    _check(result)
                return results
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, max_pause_s)


def _check(result: dict[str, Any]) -> None:
    if "refused" in result:
        raise BadWeights(result["refused"])
    if "group_broken" in result:
        raise GroupBroken(result["group_broken"])
    if "failed" in result:
        raise EngineGone(f"a worker of vLLM failed: {result['failed']}")


def _values(text: str, name: str) -> list[int]:
    return [int(float(value)) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)]
