"""The SGLang engine of a run, driven by SGLang's routes (0.5.21)."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_like.config.sections.engines.keys import SGLANG as KEYS
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.engines.base import (
    EngineInfo,
    GenerateOutput,
    GenerateRequest,
    Verification,
    WeightUpdate,
)
from areal_like.serving.engines.external.external_engine import ExternalEngine, IncompatibleEngine
from areal_like.serving.engines.external.installations import unsupported_version
from areal_like.serving.engines.external.model_files import eos_token_ids, max_sequence_length, vocab_size
from areal_like.serving.engines.sglang.command import SENT_TO_ONE, takes_sent_weights
from areal_like.serving.engines.sglang.distribution import DISTRIBUTION
from areal_like.serving.engines.sglang.requests import (
    Capabilities,
    is_truncated,
    parse_output,
    prompt_logprobs,
    request_body,
)
from areal_like.serving.engines.sglang.weights import WeightLoader
from areal_like.serving.requests import parse_sampling
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.probe import Probe
from areal_like.weights.transfer_path import COLLECTIVE_MODES

START_HINT = "start it as `python -m areal_like.serving.engines.sglang.plugin.launch` with --sampling-mask-max-tokens"
GAUGES = {"running": "num_running_reqs", "waiting": "num_waiting_reqs", "cached_tokens": "num_used_tokens"}


class SGLangEngine(ExternalEngine):
    """Its requests cannot be kept while its weights change: they are aborted, and continued from their tokens."""

    start_hint = START_HINT
    hashes_files = True

    def __init__(
        self, address: str, secret: str, config: Any, model_folder: Path, proofs: ProofVerifier | None = None
    ) -> None:
        super().__init__(KEYS, config, address, secret, proofs)
        self._folder, self._context_length = model_folder, config.sglang.context_length
        self._gets_sent = config.actor.weight_update_mode in COLLECTIVE_MODES
        self._weights = WeightLoader(self.calls)
        self._able = Capabilities(has_tokenizer=True, by_seed=False)
        self._numbers = itertools.count()
        self._names: dict[str, list[str]] = {}
        """Our id -> SGLang's names of running requests."""

    async def get_ready(self) -> None:
        await self.calls.read("GET", "/health")
        self.info = await self.read_info()
        if self._weights.takes_sent:
            devices = await self._weights.workers.read_places()
            await self._weights.remove_leftovers()
            self.info = self.info._replace(processes=self._weights.workers.num_workers, devices=devices)
        await self.generate_token()
        await self.calls.read("POST", "/freeze_gc")  # or it scans all its memory at each update

    async def read_info(self) -> EngineInfo:
        server = await self.calls.get("/server_info")
        model = await self.calls.get("/model_info")
        if (reason := unsupported_version(DISTRIBUTION, server["version"])) is not None:
            raise IncompatibleEngine(f"sglang.python: {reason}")
        if not model["is_generation"]:
            raise IncompatibleEngine(f"actor.path: {model['model_path']} generates no text")
        self._weights.shows_checksums = server["device"] == "cpu"
        self._weights.takes_sent = takes_sent_weights(server)
        if self._gets_sent and not self._weights.takes_sent:
            found = f"dp_size={server['dp_size']}, pp_size={server['pp_size']}"
            raise IncompatibleEngine(f"it runs with {found}; {SENT_TO_ONE}")
        self._able = Capabilities(not server["skip_tokenizer_init"], bool(server["enable_deterministic_inference"]))
        limits = (self._context_length, server["context_length"], max_sequence_length(self._folder))
        context = min((limit for limit in limits if limit), default=None)
        if context is None:
            raise IncompatibleEngine("sglang.context_length: unknown for this server and model; set it")
        return EngineInfo(
            engine="sglang",
            version=server["version"],
            model=model["tokenizer_path"],  # model_path is that of the newest weights
            context_length=context,
            vocab_size=vocab_size(self._folder),
            eos_token_ids=eos_token_ids(self._folder),
            dtype=self.dtype,
            length_key=KEYS.length_key,
        )

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]:
        sampling = parse_sampling(request.sampling, self.info.vocab_size)
        are_equal = sampling.is_greedy and request.n > 1
        native = request._replace(n=1) if are_equal else request
        number = next(self._numbers)
        # SGLang aborts all requests whose names start with the given one: no name here is the start of another.
        names = [f"{request.id}#{number}#{sample}#" for sample in range(native.n)]
        self._names.setdefault(request.id, []).extend(names)
        try:
            responses = await self.calls.post("/generate", request_body(native, names, self.info, self._able))
        except asyncio.CancelledError:
            raise  # SGLang still generates it, until it is aborted by its name
        except BaseException:
            self._forget(request.id, names)
            raise
        self._forget(request.id, names)
        truncated = is_truncated(sampling)
        outputs = [parse_output(response, truncated) for response in responses]
        return outputs * request.n if are_equal else outputs

    async def abort(self, ids: Sequence[str] | None) -> None:
        if ids is None:
            await self.calls.read("POST", "/abort_request", {"abort_all": True})
            return
        names = [name for id in ids for name in self._names.pop(id, ())]
        await asyncio.gather(*(self.calls.read("POST", "/abort_request", {"rid": name}) for name in names))

    def _forget(self, id: str, names: Sequence[str]) -> None:
        left = [name for name in self._names.pop(id, ()) if name not in names]
        if left:
            self._names[id] = left

    async def stage(self, update: WeightUpdate) -> None:
        await self._weights.stage(update)

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> None:
        await self._weights.commit(update)

    async def discard(self) -> None:
        await self._weights.discard()

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        return await self._weights.verify(infos)

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        sampling = {"max_new_tokens": 0, "temperature": 1.0}
        body: dict[str, Any] = {"input_ids": list(token_ids), "sampling_params": sampling}
        body |= {"return_logprob": True, "logprob_start_len": 0}
        response = await self.calls.post("/generate", body if adapter is None else body | {"lora_path": adapter})
        return prompt_logprobs(response)

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self.calls.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        await self.calls.post("/unload_lora_adapter", {"lora_name": name})

    async def statistics(self) -> dict[str, Any]:
        loads = (await self.calls.get("/v1/loads?include=core"))["loads"]
        return {key: sum(load[name] for load in loads) for key, name in GAUGES.items()}
