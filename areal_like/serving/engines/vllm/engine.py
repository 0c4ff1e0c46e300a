"""The vLLM engine of a run, driven by vLLM's routes (0.32)."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_like.config.sections.engines.keys import VLLM as KEYS
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
from areal_like.serving.engines.external.engine_workers import MIN_POLL_S, EngineWorkers
from areal_like.serving.engines.external.external_engine import ExternalEngine, IncompatibleEngine
from areal_like.serving.engines.external.installations import unsupported_version
from areal_like.serving.engines.external.model_files import eos_token_ids, vocab_size
from areal_like.serving.engines.vllm.distribution import DISTRIBUTION
from areal_like.serving.engines.vllm.requests import is_greedy, logprob_of, parse_output, prompt_logprobs, request_body
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.probe import Probe

GENERATE = "/inference/v1/generate"
REQUEST_PREFIX = "generate-tokens-"
"""vLLM's prefix of request ids on that route; `/abort_requests` needs it."""
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
        self._workers = EngineWorkers(KEYS.title, self._call_workers, KEYS.memory_key)
        self._limit_s = float(config.weights.broadcast.timeout_s)
        self._has_version = False
        """Whether vLLM was given the version of its weights."""

    async def get_ready(self) -> None:
        self.info = await self.read_info()
        await self._check_extension()
        if self.hashes_files:  # an extension of the user's may not have this method
            self.info = self.info._replace(devices=await self._workers.read_places())
        await self.generate_token()

    async def _check_extension(self) -> None:
        try:
            await self._call_workers("areal_discard")
        except EngineGone as fault:
            raise IncompatibleEngine(f"it cannot take new weights ({fault}); {START_HINT}") from fault

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
        await self._workers.stage(update, self._limit_s)

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> None:
        """The key-value cache of frozen requests is of the old weights: it is dropped, and vLLM computes it again after
        the pause."""
        await self._workers.commit(update.version)
        _, done = await asyncio.gather(
            self.name_version(update.version),
            self.calls.post("/reset_prefix_cache?reset_running_requests=true&reset_external=true"),
        )
        if not done["success"]:
            raise EngineGone("vLLM did not drop its cache of the old weights")

    async def name_version(self, version: int) -> None:
        await self.calls.post("/update_weight_version", {"new_version": str(version)})
        self._has_version = True

    async def discard(self) -> None:
        await self._workers.discard()

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        await self._call_workers("areal_read_back", json.dumps([list(info) for info in infos]))
        check = Verification()
        for result in await self._workers.results("areal_seen", MIN_POLL_S):
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

    async def _call_workers(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        """Calls a method of our extension in every worker."""
        response = await self.calls.post("/collective_rpc", {"method": method, "args": arguments})
        results: list[dict[str, Any]] = response["results"]
        return results


def _values(text: str, name: str) -> list[int]:
    return [int(float(value)) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)]
