"""`/v1/completions` of OpenAI's interface, with vLLM's additions."""

import asyncio
import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response, read_json
from areal_like.process.seeds import derive_seed
from areal_like.serving.engines.embedded.openai_api.logprobs import (
    TokenLogprob,
    TokenNames,
    sample_logprobs,
    to_completion_logprobs,
    to_prompt_logprobs,
)
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing
from areal_like.serving.engines.embedded.openai_api.parse_request import (
    MAX_PROMPTS,
    check_num_scored,
    parse_flag,
    parse_n,
    parse_num_logprobs,
    parse_priority,
    parse_seed,
    refuse_unsupported,
    sampling_keys,
    with_client_key,
)
from areal_like.serving.requests import BadRequest, GeneratedSample, GroupRequest, parse_group
from areal_like.serving.stop_text import FinishedText, batch_decoder, finished_texts

DEFAULT_MAX_TOKENS = 16
"""Default of OpenAI's interface."""


@dataclass(frozen=True)
class CompletionOptions:
    """Contents of the response besides texts."""

    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool
    ids: bool
    names: TokenNames
    skip_special: bool
    include_stop: bool
    prompt_only: bool

    @property
    def scored(self) -> int | None:
        """Number of most likely tokens for each token of the prompt; None: no log-probabilities of it."""
        echoed = self.logprobs if self.echo else None
        return max((number for number in (self.prompt_logprobs, echoed) if number is not None), default=None)


class CompletionsRoute:
    def __init__(self, serving: OpenAIServing) -> None:
        self._serving, self._engine, self._tokenizer = serving, serving.engine, serving.tokenizer
        self._numbers = itertools.count()

    async def completions(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        if not isinstance(body, dict):
            raise HttpError(400, "the body is an object with model and prompt")
        number = next(self._numbers)
        try:
            await self._serving.load_tokenizer()  # a missing one is reported before anything is generated
            options = self._options(body)
            groups = await self._groups(body, number, options)
            if options.scored is not None:
                check_num_scored(groups)
            if options.prompt_only:
                answers: list[list[GeneratedSample]] = [
                    [GeneratedSample([], [], [], "length")] * group.n for group in groups
                ]
            else:
                answers = [one.samples for one in await self._serving.generate(request, groups)]
            prompts = await self._prompt_logprobs(request, groups, options)
        except BadRequest as bad:
            raise HttpError(400, with_client_key(str(bad))) from bad
        return json_response(await asyncio.to_thread(self._content, body, number, groups, answers, prompts, options))

    def _options(self, body: dict[str, Any]) -> CompletionOptions:
        refuse_unsupported(body)
        echo = parse_flag(body, "echo")
        return CompletionOptions(
            parse_num_logprobs(body, "logprobs"),
            parse_num_logprobs(body, "prompt_logprobs"),
            echo,
            parse_flag(body, "return_token_ids"),
            TokenNames(self._tokenizer, parse_flag(body, "return_tokens_as_token_ids")),
            parse_flag(body, "skip_special_tokens", True),
            parse_flag(body, "include_stop_str_in_output"),
            echo and body.get("max_tokens") == 0,
        )

    async def _groups(self, body: dict[str, Any], number: int, options: CompletionOptions) -> list[GroupRequest]:
        adapter = self._serving.adapter_of(body)
        seed = parse_seed(body, derive_seed(self._serving.seed, "completions", number))
        sampling = sampling_keys({**body, "max_tokens": 1} if options.prompt_only else body, DEFAULT_MAX_TOKENS)
        groups = []
        for place, prompt in enumerate(await self._prompts(body)):
            one = {
                "id": str(place),
                "prompt": prompt,
                "n": parse_n(body),
                "seed": derive_seed(seed, "prompt", place) if place else seed,
                "sampling": sampling,
            }
            group = parse_group(one, self._engine.vocab_size, self._engine.context_length, self._engine.keys.length_key)
            priority, num_top = parse_priority(body), options.logprobs or 0
            groups.append(replace(group, adapter=adapter, top_logprobs=num_top, priority=priority))
        return groups

    async def _prompts(self, body: dict[str, Any]) -> list[list[int]]:
        """A text, several texts, token ids, or several lists of them."""
        prompt, special = body.get("prompt"), parse_flag(body, "add_special_tokens", True)
        if isinstance(prompt, str):
            return [await self._serving.encode(prompt, special)]
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > MAX_PROMPTS:
                raise BadRequest(f"prompt: {len(prompt)} prompts are too many; send at most {MAX_PROMPTS} at once")
            if isinstance(prompt[0], str):
                return [await self._serving.encode(one, special) for one in prompt]
            return prompt
        if isinstance(prompt, list) and prompt:
            return [prompt]
        raise BadRequest("prompt: give a text, a list of texts, a list of token ids, or a list of such lists")

    async def _prompt_logprobs(
        self, request: web.Request, groups: list[GroupRequest], options: CompletionOptions
    ) -> list[list[TokenLogprob]]:
        """Of each prompt; empty if not requested."""
        if options.scored is None:
            return [[] for _ in groups]
        return [await self._serving.prompt_logprobs(request, group, options.scored) for group in groups]

    def _content(
        self,
        body: dict[str, Any],
        number: int,
        groups: list[GroupRequest],
        answers: list[list[GeneratedSample]],
        prompts: list[list[TokenLogprob]],
        options: CompletionOptions,
    ) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        decode = batch_decoder(self._tokenizer.get(), options.skip_special)
        for group, samples, logprobs in zip(groups, answers, prompts, strict=True):
            ends = finished_texts(
                decode, [(sample.token_ids, sample.finish) for sample in samples], group.sampling.stop
            )
            for sample, end in zip(samples, ends, strict=True):
                choices.append(self._choice(len(choices), group, sample, end, logprobs, options))
        prompt_tokens = sum(len(group.prompt) for group in groups)
        answer_tokens = sum(len(sample.token_ids) for samples in answers for sample in samples)
        return {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.get("model") or self._serving.model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": answer_tokens,
                "total_tokens": prompt_tokens + answer_tokens,
            },
        }

    def _choice(
        self,
        index: int,
        group: GroupRequest,
        sample: GeneratedSample,
        end: FinishedText,
        prompt: list[TokenLogprob],
        options: CompletionOptions,
    ) -> dict[str, Any]:
        """Its text has neither stop texts nor special tokens, unless the request includes them."""
        text, logprobs = end.text, sample_logprobs(sample)
        if options.include_stop:
            text = self._tokenizer.decode(sample.token_ids, options.skip_special)
        if options.echo:
            text, logprobs = self._tokenizer.decode(group.prompt, options.skip_special) + text, prompt + logprobs
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "finish_reason": sample.finish,
            "stop_reason": stop_reason(group, sample, end),
            "logprobs": None if options.logprobs is None else to_completion_logprobs(logprobs, options.names),
        }
        if options.prompt_logprobs is not None:
            choice["prompt_logprobs"] = to_prompt_logprobs(prompt, options.names)
        if options.ids:
            choice |= {"token_ids": sample.token_ids, "prompt_token_ids": list(group.prompt)}
        return choice


def stop_reason(group: GroupRequest, sample: GeneratedSample, end: FinishedText) -> str | int | None:
    """The stop text or token of the request that ended the answer; the model's own end tokens do not count."""
    if sample.finish != "stop" or end.stop is not None:
        return end.stop
    return sample.token_ids[-1] if sample.token_ids[-1] in group.sampling.stop_token_ids else None
