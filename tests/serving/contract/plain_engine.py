"""The engine `plain`: transformers inside the server's process, one token of one answer at a time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache

from areal_like.models import model_folder
from areal_like.process.errors import Failure
from areal_like.process.seeds import derive_seed
from areal_like.serving.engines.base import (
    EngineInfo,
    GenerateOutput,
    GenerateRequest,
    InferenceEngine,
    NotStaged,
    Verification,
    WeightUpdate,
)
from areal_like.serving.engines.external.model_files import eos_token_ids, max_sequence_length, vocab_size
from areal_like.serving.requests import Sampling, max_answer_tokens, parse_sampling
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.disk import load_version
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.probe import Probe
from areal_like.weights.receive import receive_tensors


def load_model(config: Any, cwd: Path) -> Any:
    folder = model_folder(config.model, cwd)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, config.dtype)).eval()


class PlainEngine(InferenceEngine):
    def __init__(self, config: Any, cwd: Path, model: Any) -> None:
        folder = model_folder(config.model, cwd)
        self.info = EngineInfo(
            engine="plain",
            version="1",
            model=str(folder),
            context_length=config.max_length or max_sequence_length(folder) or 4096,
            vocab_size=vocab_size(folder),
            eos_token_ids=eos_token_ids(folder),
            dtype=config.dtype,
            length_key="plain.max_length",
        )
        self._model: Any = model
        self._texts = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._staged: dict[str, torch.Tensor] | None = None
        self._running: dict[asyncio.Event, str] = {}
        """One event for each request, which ends it."""

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]:
        sampling = parse_sampling(request.sampling, self.info.vocab_size)
        most = max_answer_tokens(sampling, len(request.prompt), self.info.context_length, self.info.length_key)
        aborted = asyncio.Event()
        self._running[aborted] = request.id
        try:
            samples = (self._sample(request, number, sampling, most, aborted) for number in range(request.n))
            return await asyncio.gather(*samples)
        finally:
            del self._running[aborted]

    async def _sample(
        self, request: GenerateRequest, number: int, sampling: Sampling, most: int, aborted: asyncio.Event
    ) -> GenerateOutput:
        cache, fed = DynamicCache(), list(request.prompt)
        answer, logprobs = list[int](), list[float]()
        stops = {*self.info.eos_token_ids, *sampling.stop_token_ids}
        noise = torch.Generator().manual_seed(derive_seed(request.seed, "plain", number))
        while len(answer) < most:
            await asyncio.sleep(0)
            if aborted.is_set():
                return GenerateOutput(answer, logprobs, "abort")
            logits = self._logits(fed, cache)[-1]
            never = stops if len(answer) < sampling.min_new_tokens else ()
            chances = distribution(logits, sampling, request.prompt, answer, never)
            token = chances.argmax() if sampling.is_greedy else chances.exp().multinomial(1, generator=noise)[0]
            answer.append(int(token))
            logprobs.append(float(chances[token]))
            fed = answer[-1:]
            text = self._texts.decode(answer) if sampling.stop else ""
            if answer[-1] in stops or any(stop in text for stop in sampling.stop):
                return GenerateOutput(answer, logprobs, "stop")
        return GenerateOutput(answer, logprobs, "length")

    def _logits(self, token_ids: Sequence[int], cache: DynamicCache | None = None) -> torch.Tensor:
        with torch.no_grad():
            ids = torch.tensor([list(token_ids)])
            output = self._model(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
        logits: torch.Tensor = output.logits[0].float()
        return logits

    async def abort(self, ids: Sequence[str] | None) -> None:
        for aborted, name in self._running.items():
            if ids is None or name in ids:
                aborted.set()

    async def stage(self, update: WeightUpdate) -> None:
        self._staged = await asyncio.to_thread(self._load, update)

    def _load(self, update: WeightUpdate) -> dict[str, torch.Tensor]:
        if update.folder is not None:
            expected = {info.name: (info.shape, getattr(torch, info.dtype)) for info in update.index.tensors}
            return load_version(update.folder, expected, update.version - 1).tensors
        assert update.rendezvous is not None
        sent = receive_tensors(update.rendezvous, update.rendezvous.first_rank, update.index)
        return {name: tensor.clone() for name, tensor in sent}

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> None:
        if self._staged is None:
            raise NotStaged(f"version {update.version} was discarded")
        with torch.no_grad():
            for name, tensor in self._staged.items():
                self._model.get_parameter(name).copy_(tensor)
        self._staged = None

    async def discard(self) -> None:
        self._staged = None

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        return Verification({name: tensor_hash(tensor) for name, tensor in self._model.named_parameters()})

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        chances = self._logits(token_ids[:-1]).log_softmax(-1)
        return chances.gather(1, torch.tensor(token_ids)[1:, None])[:, 0].tolist()

    async def statistics(self) -> dict[str, Any]:
        return {"running": len(self._running), "waiting": 0}

    async def gone(self) -> Failure:
        await asyncio.Event().wait()
        raise AssertionError("it lives as long as its server")


def distribution(
    logits: torch.Tensor, sampling: Sampling, prompt: Sequence[int], answer: list[int], never: Sequence[int] | set[int]
) -> torch.Tensor:
    """Log-probabilities of the next token after penalties, temperature and truncation."""
    for token in {*prompt, *answer} if sampling.repetition_penalty != 1 else ():
        logits[token] *= sampling.repetition_penalty if logits[token] < 0 else 1 / sampling.repetition_penalty
    for token in answer if sampling.frequency_penalty else ():
        logits[token] -= sampling.frequency_penalty
    logits[list(never)] = -torch.inf
    if sampling.is_greedy:
        return logits.log_softmax(-1)
    ordered, order = (logits / sampling.temperature).softmax(-1).sort(descending=True)
    kept = (ordered.cumsum(-1) - ordered < sampling.top_p) & (ordered >= sampling.min_p * ordered[0])
    kept &= torch.arange(len(ordered)) < (sampling.top_k or len(ordered))
    left = torch.zeros_like(kept).scatter(0, order, kept)
    return (logits / sampling.temperature).masked_fill(~left, -torch.inf).log_softmax(-1)
