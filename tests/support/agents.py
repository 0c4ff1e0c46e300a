"""A session at a gateway in this process, over a server that gives the texts of a list."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.gateway.gateway import Endpoint, Gateway
from areal_like.rollout.episodes.gateway.session import AgentSession, SessionRules
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease

SAMPLING = {
    **{"temperature": 0.5, "greedy": False, "max_new_tokens": 600, "max_tokens": 4000},
    **{"stop_token_ids": [], "top_p": 1.0, "stop": []},
}


class SampledTexts:
    """The engine: gives the next text to each call, each token with a log-probability and version of its own, and keeps
    a log of what it has sampled. A text may be an exception."""

    def __init__(self, tokenizer: TextTokenizer, *texts: Any, end: str = "<eos>") -> None:
        self.tokenizer, self.texts, self.end = tokenizer, list(texts), end
        self.log: list[tuple[list[int], dict[str, Any]]] = []
        self.groups: list[dict[str, Any]] = []
        self.version, self.gate = 0, asyncio.Event()
        self.gateway = Gateway()
        self.gate.set()

    async def generate(self, route: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
        texts = [self.texts.pop(0) for _ in range(group["n"])]
        self.groups.append(group)
        first = self.version
        await self.gate.wait()
        samples = []
        for text in texts:
            if isinstance(text, Exception):
                raise text
            ids = self.tokenizer.encode(text + self.end, special=False)
            place = sum(len(each["token_ids"]) for _, each in self.log)
            versions = [first] + [self.version] * (len(ids) - 1)
            logprobs = [-1.0 - (place + at) / 1024 for at in range(len(ids))]
            sample = {"token_ids": ids, "logprobs": logprobs, "versions": versions, "finish": "stop"}
            self.log.append((group["prompt"], sample))
            samples.append(sample)
        return samples

    def check_exact(self, trajectories: list[Any]) -> None:
        """Every token in the loss stands in the log once, after the ids that the engine was given, with its version and
        log-probability, and nothing else is trained on."""
        sampled = {round((-1.0 - logprob) * 1024): (prompt, sample, at) for prompt, sample in self.log
                   for at, logprob in enumerate(sample["logprobs"])}  # fmt: skip
        trained = []
        for each in trajectories:
            assert each.problem() is None
            ids = each.token_ids.tolist()
            for place in each.loss_mask.nonzero()[0].tolist():
                number = round((-1.0 - float(each.logprobs[place])) * 1024)
                prompt, sample, at = sampled[number]
                assert ids[: place + 1] == prompt + sample["token_ids"][: at + 1]
                assert each.versions[place] == sample["versions"][at]
                trained.append(number)
        assert len(trained) == len(set(trained))


@asynccontextmanager
async def open_session(
    engine: SampledTexts, rules: SessionRules | None = None, conversation_rules: ConversationRules | None = None
) -> AsyncIterator[tuple[AgentSession, Endpoint]]:
    tools = WorkerTools(
        *(engine.tokenizer, engine, Rewards(), False, False, 0.5),
        conversation_rules=conversation_rules or ConversationRules(),
        gateway=engine.gateway,
    )
    episode = Episode(tools, lease(0, "here", n=1, row_hash="0") | {"sampling": SAMPLING})
    session = episode.agent_session(rules or SessionRules())
    endpoint = await tools.gateway.open(session)
    try:
        yield session, endpoint
        await tools.gateway.end(endpoint)
    finally:
        await tools.gateway.close()


class AgentClient:
    """Raw requests with the key of an episode."""

    def __init__(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        self.endpoint, self.http = endpoint, http
        self.headers = {"Authorization": f"Bearer {endpoint.key}"}

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.http.post(
            f"{self.endpoint.url}{path}", json=body, headers={**self.headers, **headers}
        ) as response:
            return response.status, await response.json()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
