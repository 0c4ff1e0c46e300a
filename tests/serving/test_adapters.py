"""Adapters for an external engine that is paused, full, or has one of that version."""

import asyncio
from pathlib import Path

from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from tests.serving.test_updates import NO_END, loaded, publish_tiny_adapter, refusal
from tests.support.external_server import PROMPT, SECRET, Client, check, group, logprobs_of, until, with_server
from tests.support.tiny_models import tiny_qwen3

UPDATE = "/control/update_weights"


def test_an_adapter_is_probed_while_the_engine_is_paused(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/pause", {"mode": "keep"})
        probe = {"token_ids": PROMPT, "logprobs": logprobs_of(tiny_qwen3(101), PROMPT)}
        done = await client.call("POST", UPDATE, publish_tiny_adapter(tmp_path, 1) | {"probe": probe})
        assert done["version"] == 1 and len(done["probe_logprobs"]) == len(PROMPT) - 1
        assert not client.engine._runs.is_set(), "it is paused as before"
        asking = asyncio.create_task(client.generate(group("g")))
        await client.call("POST", "/control/resume")
        check((await asking)["g"]["samples"][0], lambda version: 100 + version)

    with_server(tmp_path, test, can_keep=True)


def test_an_adapter_without_room_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", UPDATE, publish_tiny_adapter(tmp_path, 1))
        asking = asyncio.create_task(client.generate(group("old", **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        await client.call("POST", UPDATE, publish_tiny_adapter(tmp_path, 2))
        await client.call("POST", "/control/pause", {"mode": "keep"})
        client.server.updates._adapters._limit_s = 0.1
        response = await refusal(client, UPDATE, publish_tiny_adapter(tmp_path, 3))
        assert response.status == 409 and response.message.startswith("rollout.request_timeout: waited")
        assert "groups on older adapters to end before version 3 is loaded" in response.message
        await client.call("POST", "/control/resume")
        await asking
        assert (await client.call("POST", UPDATE, publish_tiny_adapter(tmp_path, 3)))["version"] == 3

    with_server(tmp_path, test, can_keep=True, token_s=0.02)


def test_adapters_of_one_version_from_two_attempts_have_different_names(tmp_path: Path) -> None:
    """What an engine remembers of prompts, it remembers by the adapter's name."""

    async def test(client: Client) -> None:
        await client.call("POST", UPDATE, publish_tiny_adapter(tmp_path, 3))
        (before,) = client.engine.adapters
        async with HttpClient(Identity("rollout", 0, attempt=2), SECRET) as newer:
            await newer.json("POST", client.address, UPDATE, publish_tiny_adapter(tmp_path, 3, value=2))
        assert loaded(client) == {3} and before not in client.engine.adapters

    with_server(tmp_path, test)
