"""Access of clients other than the run: tokenizer, generation and log-probabilities of prompts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.serving.client_connection import is_disconnected, while_connected
from areal_like.serving.client_queue import ClientQueue
from areal_like.serving.engines.base import ClientAccess
from areal_like.serving.engines.embedded.async_engine import AsyncLLMEngine
from areal_like.serving.engines.embedded.openai_api.logprobs import TokenLogprob
from areal_like.serving.engines.embedded.openai_api.parse_request import check_text_length
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest, shorten


class OpenAIServing:
    """Shared by all routes. `seed` is for requests without one."""

    def __init__(self, async_engine: AsyncLLMEngine, access: ClientAccess, seed: int) -> None:
        self.async_engine, self.model, self.seed = async_engine, access.model, seed
        self.engine = async_engine.engine
        self.tokenizer = self.engine.tokenizer
        self.turns = ClientQueue(self.engine.max_running, lambda: access.is_used_by_run)
        self._scoring = ClientQueue(1, lambda: False)
        """Prompts are scored one at a time, so that scoring takes at most one turn from generation."""

    async def encode(self, text: Any, special: bool) -> list[int]:
        """In a thread, since a long text takes long; raises BadRequest."""
        if not isinstance(text, str):
            raise BadRequest(f"prompt: {shorten(text)} is not a text")
        check_text_length(text, self.engine.context_length)
        return await asyncio.to_thread(self.tokenizer.encode, text, special)

    async def load_tokenizer(self) -> None:
        """In a thread; raises BadRequest if there is none."""
        await asyncio.to_thread(self.tokenizer.get)

    def adapter_of(self, body: Mapping[str, Any]) -> str:
        """Adapter that the request names as its model; empty for the bare model."""
        model = body.get("model") or self.model
        if model == self.model:
            return ""
        adapters = list(self.engine.adapters.loaded)
        if model not in adapters:
            others = f", with adapters {', '.join(adapters)}" if adapters else ""
            raise HttpError(404, f"model: {shorten(model)} is not served here; this is {self.model!r}{others}")
        return str(model)

    async def generate(self, request: web.Request, groups: Sequence[GroupRequest]) -> list[FinishedGroup]:
        """In the order of the groups. Each waits for its own turn; if one fails, the others are cancelled."""
        tasks = [asyncio.create_task(self._generate_one(request, group)) for group in groups]
        try:
            return await asyncio.gather(*tasks)
        except ConnectionError as fault:
            raise HttpError(503, str(fault)) from fault
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate_one(self, request: web.Request, group: GroupRequest) -> FinishedGroup:
        turn = self.turns.take(group.n, lambda: is_disconnected(request))
        async with turn:
            done = await while_connected(request, self.async_engine.generate(group))
        if done.error is not None and done.number < 0:
            raise BadRequest(done.error)
        if done.error is not None:
            raise HttpError(503, done.error)
        return done

    async def prompt_logprobs(self, request: web.Request, group: GroupRequest, num_top: int) -> list[TokenLogprob]:
        """Of a prompt's tokens at temperature 1, with `num_top` most likely tokens in each place. Waits for the turn of
        one sequence."""
        if len(group.prompt) >= self.engine.context_length:
            raise BadRequest(
                f"prompt: {len(group.prompt)} tokens are too many for {self.engine.context_length} of context"
            )

        def is_closed() -> bool:
            return is_disconnected(request)

        try:
            async with self._scoring.take(1, is_closed), self.turns.take(1, is_closed):
                scoring = self.async_engine.run_in_background(lambda: self.engine.prompt_logprobs(group, num_top))
                logprobs, top_logprobs = await while_connected(request, scoring)
        except ConnectionError as fault:
            raise HttpError(503, str(fault)) from fault
        first: TokenLogprob = (group.prompt[0], None, {})
        return [first, *zip(group.prompt[1:], logprobs, top_logprobs, strict=True)]
