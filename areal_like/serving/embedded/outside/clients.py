"""Clients that are not of the run: what they reach, and how they get answers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from areal_like.process.errors import Refused
from areal_like.serving.embedded.outside.logprobs import Chance
from areal_like.serving.embedded.streams import Streams
from areal_like.serving.request import BadRequest, Finished, Group

MOST_LOGITS = 1 << 28
"""Of a prompt whose log-probabilities are asked for: they stand in memory all at once."""


class Outside:
    """`model` is the name under which they ask for it; `seed` is for requests that have none of their own."""

    def __init__(self, streams: Streams, model: str, seed: int) -> None:
        self.streams, self.model, self.seed = streams, model, seed
        self.engine = streams.driver.engine
        self.tokenizer = self.engine.tokenizer

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
            raise Refused(404, f"model: {model!r} is not served here; this is {self.model!r}{beside}")
        return str(model)

    async def generate(self, request: web.Request, groups: Sequence[Group]) -> list[Finished]:
        """In the order of the groups, whose ids differ."""
        done: dict[str, Finished] = {}
        try:
            async for finished in self.streams.run(request, groups):
                done.update((one.id, one) for one in finished)
        except ConnectionError as gone:
            raise Refused(503, str(gone)) from gone
        for one in done.values():
            if one.error is not None and one.ticket < 0:
                raise BadRequest(one.error)
            if one.error is not None:
                raise Refused(503, one.error)
        return [done[group.id] for group in groups]

    async def prompt_chances(self, group: Group, number: int) -> list[Chance]:
        """Of a prompt's tokens at temperature 1, with so many of the likeliest in each place."""
        most = MOST_LOGITS // self.engine.vocab_size
        if len(group.prompt) > most:
            raise BadRequest(f"prompt: log-probabilities of more than {most} tokens are too much at once; shorten it")
        found = await self.streams.call(lambda: self.engine.prompt_chances(group, number))
        first: Chance = (group.prompt[0], None, {})
        return [first, *zip(group.prompt[1:], *found, strict=True)]
