"""Completions as clients of OpenAI's interface ask for them, with what vLLM has beyond it."""

import asyncio
import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response, read_json
from areal_like.process.seeds import derive_seed
from areal_like.serving.embedded.openai_api import parse_request
from areal_like.serving.embedded.openai_api.clients import OpenAIServing
from areal_like.serving.embedded.openai_api.logprobs import (
    TokenLogprob,
    TokenNames,
    sample_logprobs,
    to_completion_logprobs,
    to_prompt_logprobs,
)
from areal_like.serving.requests import BadRequest, GeneratedSample, GroupRequest, parse_group
from areal_like.serving.stop_text import FinishedText, batch_decoder, finished_texts

DEFAULT_MAX_TOKENS = 16
"""What OpenAI's interface takes where a request says nothing."""


@dataclass(frozen=True)
class CompletionOptions:
    """What an answer should have besides its text."""

    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool
    ids: bool
    names: TokenNames
    skips_special: bool
    with_stop: bool
    prompt_alone: bool

    @property
    def scored(self) -> int | None:
        """How many of the likeliest tokens are wanted beside each of a prompt; None: nobody wants to know."""
        echoed = self.logprobs if self.echo else None
        return max((number for number in (self.prompt_logprobs, echoed) if number is not None), default=None)


class CompletionsRoute:
    """`/v1/completions`."""

    def __init__(self, outside: OpenAIServing) -> None:
        self._outside, self._engine, self._tokenizer = outside, outside.engine, outside.tokenizer
        self._numbers = itertools.count()

    async def completions(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        if not isinstance(said, dict):
            raise HttpError(400, "the body is an object with model and prompt")
        number = next(self._numbers)
        try:
            await self._outside.load_tokenizer()  # where there is none, that is told before anything is generated
            wishes = self._wishes(said)
            groups = await self._groups(said, number, wishes)
            if wishes.scored is not None:
                parse_request.check_num_scored(groups)
            if wishes.prompt_alone:
                answers: list[list[GeneratedSample]] = [
                    [GeneratedSample([], [], [], "length")] * group.n for group in groups
                ]
            else:
                answers = [one.samples for one in await self._outside.generate(request, groups)]
            prompts = await self._prompt_chances(request, groups, wishes)
        except BadRequest as bad:
            raise HttpError(400, parse_request.with_client_key(str(bad))) from bad
        return json_response(await asyncio.to_thread(self._content, said, number, groups, answers, prompts, wishes))

    def _wishes(self, said: dict[str, Any]) -> CompletionOptions:
        parse_request.refuse_unsupported(said)
        echo = parse_request.parse_flag(said, "echo")
        return CompletionOptions(
            parse_request.parse_num_logprobs(said, "logprobs"),
            parse_request.parse_num_logprobs(said, "prompt_logprobs"),
            echo,
            parse_request.parse_flag(said, "return_token_ids"),
            TokenNames(self._tokenizer, parse_request.parse_flag(said, "return_tokens_as_token_ids")),
            parse_request.parse_flag(said, "skip_special_tokens", True),
            parse_request.parse_flag(said, "include_stop_str_in_output"),
            echo and said.get("max_tokens") == 0,
        )

    async def _groups(self, said: dict[str, Any], number: int, wishes: CompletionOptions) -> list[GroupRequest]:
        adapter = self._outside.adapter_of(said)
        seed = parse_request.parse_seed(said, derive_seed(self._outside.seed, "completions", number))
        sampling = parse_request.sampling_keys(
            {**said, "max_tokens": 1} if wishes.prompt_alone else said, DEFAULT_MAX_TOKENS
        )
        groups = []
        for place, prompt in enumerate(await self._prompts(said)):
            one = {
                "id": str(place),
                "prompt": prompt,
                "n": parse_request.parse_n(said),
                "seed": derive_seed(seed, "prompt", place) if place else seed,
                "sampling": sampling,
            }
            group = parse_group(one, self._engine.vocab_size, self._engine.context_length)
            priority, number_of = parse_request.parse_priority(said), wishes.logprobs or 0
            groups.append(replace(group, adapter=adapter, alternatives=number_of, priority=priority))
        return groups

    async def _prompts(self, said: dict[str, Any]) -> list[list[int]]:
        """A text, several texts, token ids, or several lists of them."""
        prompt, special = said.get("prompt"), parse_request.parse_flag(said, "add_special_tokens", True)
        if isinstance(prompt, str):
            return [await self._outside.encode(prompt, special)]
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > parse_request.MAX_PROMPTS:
                raise BadRequest(
                    f"prompt: {len(prompt)} prompts are too many; send at most {parse_request.MAX_PROMPTS} at once"
                )
            if isinstance(prompt[0], str):
                return [await self._outside.encode(one, special) for one in prompt]
            return prompt
        if isinstance(prompt, list) and prompt:
            return [prompt]
        raise BadRequest("prompt: give a text, a list of texts, a list of token ids, or a list of such lists")

    async def _prompt_chances(
        self, request: web.Request, groups: list[GroupRequest], wishes: CompletionOptions
    ) -> list[list[TokenLogprob]]:
        """Of each prompt; empty where nobody wants to know."""
        if wishes.scored is None:
            return [[] for _ in groups]
        return [await self._outside.prompt_chances(request, group, wishes.scored) for group in groups]

    def _content(
        self,
        said: dict[str, Any],
        number: int,
        groups: list[GroupRequest],
        answers: list[list[GeneratedSample]],
        prompts: list[list[TokenLogprob]],
        wishes: CompletionOptions,
    ) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        read = batch_decoder(self._tokenizer.get(), wishes.skips_special)
        for group, samples, chances in zip(groups, answers, prompts, strict=True):
            ends = finished_texts(read, [(sample.token_ids, sample.finish) for sample in samples], group.sampling.stop)
            for sample, end in zip(samples, ends, strict=True):
                choices.append(self._choice(len(choices), group, sample, end, chances, wishes))
        prompt_tokens = sum(len(group.prompt) for group in groups)
        answer_tokens = sum(len(sample.token_ids) for samples in answers for sample in samples)
        return {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": said.get("model") or self._outside.model,
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
        wishes: CompletionOptions,
    ) -> dict[str, Any]:
        """Its text is without what ended it, and without tokens that are no text."""
        text, chances = end.text, sample_logprobs(sample)
        if wishes.with_stop:
            text = self._tokenizer.decode(sample.token_ids, wishes.skips_special)
        if wishes.echo:
            text, chances = self._tokenizer.decode(group.prompt, wishes.skips_special) + text, prompt + chances
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "finish_reason": sample.finish,
            "stop_reason": stop_reason(group, sample, end),
            "logprobs": None if wishes.logprobs is None else to_completion_logprobs(chances, wishes.names),
        }
        if wishes.prompt_logprobs is not None:
            choice["prompt_logprobs"] = to_prompt_logprobs(prompt, wishes.names)
        if wishes.ids:
            choice |= {"token_ids": sample.token_ids, "prompt_token_ids": list(group.prompt)}
        return choice


def stop_reason(group: GroupRequest, sample: GeneratedSample, end: FinishedText) -> str | int | None:
    """The text or the token that the request named; the model's own end tokens are none."""
    if sample.finish != "stop" or end.stop is not None:
        return end.stop
    return sample.token_ids[-1] if sample.token_ids[-1] in group.sampling.stop_token_ids else None
