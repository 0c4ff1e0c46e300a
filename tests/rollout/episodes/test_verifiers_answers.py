"""What the process of an environment sends, and what a worker reads: without the package verifiers."""

import asyncio
import json
import math
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from areal_like.data.verifiers.environment_process import HostedPackage
from areal_like.data.verifiers.host.service import EnvironmentService
from areal_like.rollout.episodes.gateway.gateway import Endpoint
from areal_like.rollout.episodes.generation_client import GenerationError
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault
from areal_like.rollout.episodes.verifiers.seat import EnvironmentEnded, EnvironmentSeat
from tests.support.agents import AgentClient, user
from tests.support.verifiers_environments import Player

HALF = "\ud800"
"""Of a surrogate pair: no text in UTF-8."""


class Environment:
    """Its episodes are what a request says."""

    def rows(self, held_out: bool) -> Iterator[dict[str, Any]]:
        yield {"prompt": "1+1="}
        yield {"prompt": HALF} if held_out else {"prompt": "1+2=", "weight": math.nan}

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        found: Any = RESULTS[request["row"]]
        if isinstance(found, Exception):
            raise found
        return [{"reward": 1.0, "metrics": {}}, found]

    async def close(self) -> None:
        pass


RESULTS = {
    "right": {"reward": 0.5, "metrics": {"length": 3.0}},
    "nan": {"reward": math.nan, "metrics": {"length": -math.inf}},
    "half": {"error": f"ValueError: {HALF}"},
    "set": {"reward": 1.0, "metrics": {"seen": {1}}},
    "raise": ValueError(f"no {HALF}"),
}


class HostedProcess:
    """The environment's process, within this one."""

    package = SimpleNamespace(name="sums")

    def __init__(self) -> None:
        self.wire, self.theirs = socket.socketpair()
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True
        self.theirs.close()

    def close(self) -> None:
        self.wire.close()

    @property
    def ending(self) -> str:
        return signal.Signals(signal.SIGTERM).name


async def serve(wire: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=wire)
    served = EnvironmentService(writer)
    served._environment = Environment()
    while line := await reader.readline():
        await served.take(json.loads(line))
    await served.close()
    writer.close()


def played(script: Callable[[EnvironmentSeat], Awaitable[None]]) -> None:
    async def run() -> None:
        process: Any = HostedProcess()
        serving = asyncio.create_task(serve(process.theirs))
        seat = EnvironmentSeat(process, None)
        await seat.open()
        try:
            await asyncio.wait_for(script(seat), 60)
        finally:
            await seat.close()
            await serving

    asyncio.run(run())


def test_a_reward_that_is_no_number_is_one_of_its_episode_and_other_groups_are_played() -> None:
    async def script(seat: EnvironmentSeat) -> None:
        right, odd = await seat.play({"row": "nan"})
        assert right["reward"] == 1.0 and math.isnan(odd["reward"]) and odd["metrics"] == {"length": -math.inf}
        assert (await seat.play({"row": "right"}))[1] == RESULTS["right"]

    played(script)


def test_what_is_no_json_is_an_error_of_its_group_alone() -> None:
    async def script(seat: EnvironmentSeat) -> None:
        groups = [seat.play({"row": name}) for name in ("set", "right", "raise")]
        refused, right, raised = await asyncio.gather(*groups, return_exceptions=True)
        assert isinstance(refused, EnvironmentFault)
        assert str(refused).startswith("environment sums: TypeError: Object of type set")
        assert right == [{"reward": 1.0, "metrics": {}}, RESULTS["right"]]
        assert str(raised) == "environment sums: ValueError: no ?"
        assert (await seat.play({"row": "half"}))[1] == {"error": "ValueError: ?"}
        assert seat.num_playing == 0

    played(script)


@pytest.mark.parametrize(
    ("held_out", "problem"), [(False, "row 1: ValueError: Out of range"), (True, "row 1: Unicode")]
)
def test_a_row_that_is_no_json_is_named(held_out: bool, problem: str) -> None:
    async def read() -> tuple[bytes, bytes]:
        wire, theirs = socket.socketpair()
        serving = asyncio.create_task(serve(theirs))
        reader, writer = await asyncio.open_connection(sock=wire)
        writer.write(json.dumps({"do": "rows", "held_out": held_out}).encode() + b"\n")
        lines = await reader.readline(), await reader.readline()
        writer.close()
        await serving
        return lines

    row, refused = asyncio.run(read())
    assert row == b'{"row": {"prompt": "1+1="}}\n' and f'{{"problem": "{problem}'.encode() in refused


@pytest.mark.parametrize("line", [b"printed, and no answer\n", b'{"played": 0, "results": \xff}\n'])
def test_a_process_that_sends_what_cannot_be_read_is_killed_and_its_groups_end(line: bytes) -> None:
    async def script() -> None:
        process: Any = HostedProcess()
        seat = EnvironmentSeat(process, None)
        await seat.open()
        groups = [asyncio.create_task(seat.play({"row": name})) for name in ("right", "nan")]
        process.theirs.sendall(line)
        ended = await asyncio.wait_for(asyncio.gather(*groups, return_exceptions=True), 60)
        assert all(isinstance(each, EnvironmentEnded) for each in ended)
        assert "environment sums: its process was killed, as it sent what cannot be read" in str(ended[0])
        assert process.is_killed and seat.has_ended and seat.num_playing == 0
        with pytest.raises(EnvironmentEnded, match="its process has ended"):
            await seat.play({"row": "right"})
        await seat.close()

    asyncio.run(script())


def test_a_process_that_ends_within_an_answer_is_said_to_have_ended() -> None:
    async def script() -> None:
        process: Any = HostedProcess()
        seat = EnvironmentSeat(process, None)
        await seat.open()
        group = asyncio.create_task(seat.play({"row": "right"}))
        process.theirs.sendall(b'{"played": 0, "resul')
        process.theirs.close()
        with pytest.raises(EnvironmentEnded, match="its process ended with SIGTERM; its log says more"):
            await asyncio.wait_for(group, 60)
        await seat.close()

    asyncio.run(script())


class AsksTwice:
    """The processes of an environment that goes on where its second call fails."""

    async def play(self, request: dict[str, Any], *_: Any) -> list[dict[str, Any]]:
        (policy,) = request["policies"]
        async with aiohttp.ClientSession() as http:
            client = AgentClient(Endpoint(policy["base_url"].removesuffix("/v1"), policy["key"]), http)
            for text in "12":
                await client.post("/v1/chat/completions", {"messages": [user(text)]})
        return [{"reward": 1.0, "metrics": {}}]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("fails", [True, False])
def test_an_episode_that_a_server_cut_short_is_not_trained_on(tmp_path: Path, fails: bool) -> None:
    async def script() -> None:
        player = Player(HostedPackage("sums", {}, None, (".",)), tmp_path)
        player.environment._pool = AsksTwice()  # type: ignore[assignment]
        try:
            if not fails:
                assert [each.reward for each in await player.play({}, "1", "2")] == [1.0, 1.0]
                return
            with pytest.raises(GenerationError, match="no server"):
                await player.play({}, "1", GenerationError("no server"))
        finally:
            await player.close()

    asyncio.run(script())
