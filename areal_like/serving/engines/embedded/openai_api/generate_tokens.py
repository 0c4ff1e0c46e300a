"""`/inference/v1/generate`, vLLM's route from token ids to token ids. Only stop texts need a tokenizer."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response, read_json
from areal_like.process.seeds import derive_seed
from areal_like.serving.engines.embedded.openai_api.completions import stop_reason
from areal_like.serving.engines.embedded.openai_api.logprobs import (
    sample_logprobs,
    to_generate_logprobs,
    to_prompt_logprobs,
)
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing
from areal_like.serving.engines.embedded.openai_api.parse_request import (
    check_num_scored,
    parse_n,
    parse_num_logprobs,
    parse_priority,
    parse_seed,
    refuse_unsupported,
    sampling_keys,
    with_client_key,
)
from areal_like.serving.requests import BadRequest, GeneratedSample, GroupRequest, parse_group, shorten
from areal_like.serving.stop_text import FinishedText, batch_decoder, finished_texts


class GenerateTokensRoute:
    def __init__(self, serving: OpenAIServing) -> None:
        self._serving = serving
        self._numbers = itertools.count()

    async def generate(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        if not isinstance(body, dict) or not isinstance(body.get("sampling_params"), dict):
            raise HttpError(400, "the body is an object with token_ids and sampling_params")
        sampling: dict[str, Any] = body["sampling_params"]
        try:
            group = self._group(body, sampling)
            num_scored = parse_num_logprobs(sampling, "prompt_logprobs")
            if num_scored is not None:
                check_num_scored([replace(group, n=1)])
            if group.sampling.stop:
                await self._serving.load_tokenizer()
            (finished,) = await self._serving.generate(request, [group])
            prompt = None
            if num_scored is not None:
                logprobs = await self._serving.prompt_logprobs(request, group, num_scored)
                prompt = await asyncio.to_thread(to_prompt_logprobs, logprobs, None)
        except BadRequest as bad:
            raise HttpError(400, with_client_key(str(bad))) from bad
        with_logprobs = parse_num_logprobs(sampling, "logprobs") is not None
        content = {
            "request_id": group.id,
            "output_mode": "tokens",
            "model": body.get("model") or self._serving.model,
            "choices": await asyncio.to_thread(self._choices, group, finished.samples, with_logprobs),
            "prompt_logprobs": prompt,
        }
        if body.get("return_token_ids"):
            content["prompt_token_ids"] = list(group.prompt)
        return json_response(content)

    def _group(self, body: dict[str, Any], sampling: dict[str, Any]) -> GroupRequest:
        """Answers without a length end at the context's end."""
        refuse_unsupported(body)
        refuse_unsupported(sampling)
        if body.get("output_mode", "tokens") != "tokens":
            raise BadRequest(
                f"output_mode: {shorten(body['output_mode'])} is not supported; use tokens, or /v1/completions"
            )
        number, engine = next(self._numbers), self._serving.engine
        one = {
            "id": body.get("request_id") or f"generate-{number}",
            "prompt": body.get("token_ids"),
            "n": parse_n(sampling),
            "seed": parse_seed(sampling, derive_seed(self._serving.seed, "generate", number)),
            "sampling": sampling_keys(sampling, engine.context_length),
        }
        group = parse_group(one, engine.vocab_size, engine.context_length, engine.keys.length_key)
        num_top, priority = parse_num_logprobs(sampling, "logprobs") or 0, parse_priority(body)
        return replace(group, adapter=self._serving.adapter_of(body), top_logprobs=num_top, priority=priority)

    def _choices(
        self, group: GroupRequest, samples: list[GeneratedSample], with_logprobs: bool
    ) -> list[dict[str, Any]]:
        ends = [FinishedText("", None)] * len(samples)
        if group.sampling.stop:
            answers = [(sample.token_ids, sample.finish) for sample in samples]
            ends = finished_texts(batch_decoder(self._serving.tokenizer.get()), answers, group.sampling.stop)
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
    """Tokens by the version of the weights that generated them; `end` is exclusive."""
    spans, start = [], 0
    for version, tokens in itertools.groupby(versions):
        end = start + sum(1 for _ in tokens)
        spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans
