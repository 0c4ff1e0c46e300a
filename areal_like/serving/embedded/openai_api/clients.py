"""Clients that are not of the run: what they reach, and how they get answers."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.serving.client_queue import ClientQueue
from areal_like.serving.embedded.async_engine import AsyncLLMEngine
from areal_like.serving.embedded.openai_api import parse_request
from areal_like.serving.embedded.openai_api.logprobs import TokenLogprob
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest, shorten


class OpenAIServing:
    """`model` is the name under which they ask for it; `seed` is for requests that have none of their own."""

    def __init__(self, streams: AsyncLLMEngine, model: str, seed: int) -> None:
        self.streams, self.model, self.seed = streams, model, seed
        self.engine = streams.driver.engine
        self.tokenizer = self.engine.tokenizer
        self.turns = ClientQueue(self.engine.max_running, lambda: streams.is_used_by_run)
        self._scoring = ClientQueue(1, lambda: False)
        """Prompts are scored one after another: only the first of them takes a place of those who generate."""

    async def encode(self, text: Any, special: bool) -> list[int]:
        """Beside the event loop, as a long text takes its time; raises BadRequest."""
        if not isinstance(text, str):
            raise BadRequest(f"prompt: {shorten(text)} is not a text")
        parse_request.check_text_length(text, self.engine.context_length)
        return await asyncio.to_thread(self.tokenizer.encode, text, special)

    async def load_tokenizer(self) -> None:
        """Beside generation; raises BadRequest where there is none."""
        await asyncio.to_thread(self.tokenizer.get)

    def adapter_of(self, said: Mapping[str, Any]) -> str:
        """Name of the adapter that the request names as its model; none for the model by itself."""
        model = said.get("model") or self.model
        if model == self.model:
            return ""
        adapters = list(self.engine.adapters.loaded)
        if model not in adapters:
            beside = f", with adapters {', '.join(adapters)}" if adapters else ""
            raise HttpError(404, f"model: {shorten(model)} is not served here; this is {self.model!r}{beside}")
        return str(model)

    async def generate(self, request: web.Request, groups: Sequence[GroupRequest]) -> list[FinishedGroup]:
        """In the order of the groups. Each takes its own turn; where one fails, the others are given up."""
        tasks = [asyncio.create_task(self._generate_one(request, group)) for group in groups]
        try:
            return await asyncio.gather(*tasks)
        except ConnectionError as gone:
            raise HttpError(503, str(gone)) from gone
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate_one(self, request: web.Request, group: GroupRequest) -> FinishedGroup:
        turn = self.turns.take(group.n, lambda: _is_gone(request))
        async with turn, contextlib.aclosing(self.streams.run(request, [group])) as run:
            finished = [one async for part in run for one in part]
        (done,) = finished
        if done.error is not None and done.ticket < 0:
            raise BadRequest(done.error)
        if done.error is not None:
            raise HttpError(503, done.error)
        return done

    async def prompt_chances(self, request: web.Request, group: GroupRequest, number: int) -> list[TokenLogprob]:
        """Of a prompt's tokens at temperature 1, with so many of the likeliest in each place. It takes its turn as one
        sequence."""
        if len(group.prompt) >= self.engine.context_length:
            raise BadRequest(
                f"prompt: {len(group.prompt)} tokens are too many for {self.engine.context_length} of context"
            )

        def is_gone() -> bool:
            return _is_gone(request)

        try:
            async with self._scoring.take(1, is_gone), self.turns.take(1, is_gone):
                found = await self.streams.work(request, lambda: self.engine.prompt_chances(group, number))
        except ConnectionError as gone:
            raise HttpError(503, str(gone)) from gone
        first: TokenLogprob = (group.prompt[0], None, {})
        return [first, *zip(group.prompt[1:], *found, strict=True)]


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
