"""`/inference/v1/generate`, vLLM's route of token ids in and token ids out. It needs no tokenizer unless texts end
answers."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response, read_json
from areal_like.process.seeds import derive_seed
from areal_like.serving.embedded.openai_api import parse_request
from areal_like.serving.embedded.openai_api.clients import OpenAIServing
from areal_like.serving.embedded.openai_api.completions import stop_reason
from areal_like.serving.embedded.openai_api.logprobs import sample_logprobs, to_generate_logprobs, to_prompt_logprobs
from areal_like.serving.requests import BadRequest, GeneratedSample, GroupRequest, parse_group, shorten
from areal_like.serving.stop_text import FinishedText, batch_decoder, finished_texts


class GenerateTokensRoute:
    def __init__(self, outside: OpenAIServing) -> None:
        self._outside = outside
        self._numbers = itertools.count()

    async def generate(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        if not isinstance(said, dict) or not isinstance(said.get("sampling_params"), dict):
            raise HttpError(400, "the body is an object with token_ids and sampling_params")
        how: dict[str, Any] = said["sampling_params"]
        try:
            group = self._group(said, how)
            prompt_logprobs = parse_request.parse_num_logprobs(how, "prompt_logprobs")
            if prompt_logprobs is not None:
                parse_request.check_num_scored([replace(group, n=1)])
            if group.sampling.stop:
                await self._outside.load_tokenizer()
            (finished,) = await self._outside.generate(request, [group])
            prompt = None
            if prompt_logprobs is not None:
                chances = await self._outside.prompt_chances(request, group, prompt_logprobs)
                prompt = await asyncio.to_thread(to_prompt_logprobs, chances, None)
        except BadRequest as bad:
            raise HttpError(400, parse_request.with_client_key(str(bad))) from bad
        with_logprobs = parse_request.parse_num_logprobs(how, "logprobs") is not None
        content = {
            "request_id": group.id,
            "output_mode": "tokens",
            "model": said.get("model") or self._outside.model,
            "choices": await asyncio.to_thread(self._choices, group, finished.samples, with_logprobs),
            "prompt_logprobs": prompt,
        }
        if said.get("return_token_ids"):
            content["prompt_token_ids"] = list(group.prompt)
        return json_response(content)

    def _group(self, said: dict[str, Any], how: dict[str, Any]) -> GroupRequest:
        """What a request leaves open goes as far as the model can."""
        parse_request.refuse_unsupported(said)
        parse_request.refuse_unsupported(how)
        if said.get("output_mode", "tokens") != "tokens":
            raise BadRequest(
                f"output_mode: {shorten(said['output_mode'])} is not done here; take tokens, or /v1/completions"
            )
        number, engine = next(self._numbers), self._outside.engine
        one = {
            "id": said.get("request_id") or f"generate-{number}",
            "prompt": said.get("token_ids"),
            "n": parse_request.parse_n(how),
            "seed": parse_request.parse_seed(how, derive_seed(self._outside.seed, "generate", number)),
            "sampling": parse_request.sampling_keys(how, engine.context_length),
        }
        group = parse_group(one, engine.vocab_size, engine.context_length)
        number_of, priority = parse_request.parse_num_logprobs(how, "logprobs") or 0, parse_request.parse_priority(said)
        return replace(group, adapter=self._outside.adapter_of(said), alternatives=number_of, priority=priority)

    def _choices(
        self, group: GroupRequest, samples: list[GeneratedSample], with_logprobs: bool
    ) -> list[dict[str, Any]]:
        ends = [FinishedText("", None)] * len(samples)
        if group.sampling.stop:
            answers = [(sample.token_ids, sample.finish) for sample in samples]
            ends = finished_texts(batch_decoder(self._outside.tokenizer.get()), answers, group.sampling.stop)
        return [
            {
                "index": index,
                "token_ids": sample.token_ids,
                "logprobs": to_generate_logprobs(sample_logprobs(sample)) if with_logprobs else None,
                "finish_reason": sample.finish,
                "stop_reason": stop_reason(group, sample, end),
                "weight_versions": _spans(sample.versions),
            }
            for index, (sample, end) in enumerate(zip(samples, ends, strict=True))
        ]


def _spans(versions: list[int]) -> list[dict[str, Any]]:
    """Which tokens were made by which weights; `end` is the first token of the next."""
    spans, start = [], 0
    for version, tokens in itertools.groupby(versions):
        end = start + sum(1 for _ in tokens)
        spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans
