"""Requests of a run's processes to its servers, for tests: the controller's commands, a worker's requests."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.rollout.episodes.generation_client import GenerationClient, GenerationError, LeaseRoute
from tests.support.engines import PROBE, SECRET, LiveServer

CONTROLLER, WORKER = Identity("rollout", 0, attempt=1), Identity("episodes", 0, attempt=1)
CALL_S = 60.0


class ServerSession:
    def __init__(self, server: LiveServer, controller: HttpClient, client: GenerationClient, name: str) -> None:
        self.server, self.controller, self.client = server, controller, client
        self.address = server.addresses[name]

    async def get(self, path: str) -> Any:
        return await self.controller.json("GET", self.address, path)

    async def post(self, path: str, body: Any = None, timeout_s: float = CALL_S) -> Any:
        return await self.controller.json("POST", self.address, path, body, timeout_s)

    async def refusal(self, path: str, body: Any) -> HttpError:
        """Its error message for a request that it must refuse."""
        try:
            results = await self.post(path, body)
        except HttpError as refused:
            return refused
        raise AssertionError(f"{path} was not refused: {results}")

    async def update(self, seed: int, **changes: Any) -> dict[str, Any]:
        """The next version, with the weights of this seed."""
        body = await asyncio.to_thread(self.server.published, seed, **changes)
        answer: dict[str, Any] = await self.post("/control/update_weights", body)
        self.server.version, self.server.seed = body["version"], seed
        return answer

    async def serve(self, seed: int) -> None:
        """The weights of this seed, if it has others."""
        if self.server.seed != seed:
            await self.update(seed)

    async def generate(self, *groups: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """The samples of every group, as a worker of the run gets them."""
        seats = [LeaseRoute(group["id"], self.address) for group in groups]
        return await asyncio.gather(*map(self.client.generate, seats, groups))

    async def outcomes(self, *groups: dict[str, Any]) -> list[Any]:
        """The same, with an error instead of missing samples."""
        seats = [LeaseRoute(group["id"], self.address) for group in groups]
        results: list[Any] = await asyncio.gather(*map(self.client.generate, seats, groups), return_exceptions=True)
        return results

    async def lines(self, *groups: dict[str, Any]) -> dict[str, Any]:
        """The server's own answer to each group, without our client."""
        url = f"http://{self.address}/generate"
        async with self.controller.session.post(url, data=orjson.dumps({"groups": groups})) as response:
            answer = [orjson.loads(line) async for line in response.content]
        return {line["id"]: line for line in answer}

    async def tokens(self, **answer: Any) -> list[list[int]]:
        """The answers to one group."""
        (samples,) = await self.generate(group("tokens", **answer))
        return [sample["token_ids"] for sample in samples]

    async def until(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = 120.0) -> dict[str, Any]:
        """Polls the server's statistics until the condition holds."""
        ends = time.monotonic() + limit_s
        while time.monotonic() < ends:
            results: dict[str, Any] = await self.get("/control/statistics")
            if condition(results):
                return results
            await asyncio.sleep(0.02)
        raise AssertionError(f"the condition did not become true: {results}")

    async def reset(self) -> None:
        """Aborts all groups and resumes, so that the server is idle and not paused; a broken server stays broken."""
        try:
            await self.post("/control/abort", {"ids": "all"})
            await self.post("/control/resume")
        except (HttpError, Unreachable):
            pass


@asynccontextmanager
async def open_session(
    server: LiveServer, name: str = "server/0", others: tuple[str, ...] = ()
) -> AsyncIterator[ServerSession]:
    """`others`: servers for a client's retries when this one is lost; without any, there is no retry."""
    left = [server.addresses[other] for other in others]

    async def another(lease: str, gone: str) -> str:
        if not left:
            raise GenerationError(f"there is no other server than {gone}")
        return left[0]

    async with HttpClient(CONTROLLER, SECRET) as controller, HttpClient(WORKER, SECRET) as worker:
        client = GenerationClient(worker, CALL_S, len(others), another)
        try:
            yield ServerSession(server, controller, client, name)
        finally:
            await client.close()


def in_session(server: LiveServer, test: Callable[[ServerSession], Awaitable[None]], limit_s: float = 120.0) -> None:
    """Runs a test with a server, and resets that for the next test."""

    async def main() -> None:
        async with open_session(server) as one:
            try:
                await asyncio.wait_for(test(one), limit_s)
            finally:
                await one.reset()

    asyncio.run(main())


def group(name: str, prompt: list[int] | None = None, n: int = 1, seed: int = 3, **sampling: Any) -> dict[str, Any]:
    how = {"temperature": 1.0, "max_new_tokens": 16, **sampling}
    return {"id": name, "prompt": prompt or PROBE[:5], "n": n, "seed": seed, "sampling": how}


def healthy(server: LiveServer) -> LiveServer:
    """The server, restarted if an earlier test broke it."""
    if not server.is_alive() or asyncio.run(_status(server)) != "ok":
        print(f"{server.engine} was left broken; the end of its log:\n{server.log()}")
        server.kill()
        server.start()
    return server


async def _status(server: LiveServer) -> str:
    async with open_session(server) as one:
        try:
            return str((await one.get("/health"))["status"])
        except (HttpError, Unreachable):
            return "gone"
