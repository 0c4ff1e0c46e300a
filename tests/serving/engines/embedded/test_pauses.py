"""Pauses of a server, priorities and deadlines of groups."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.errors import HttpError
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import BadRequest, GroupRequest, Sampling, parse_group
from tests.serving.engines.embedded.test_engine import expected_logprobs
from tests.support.embedded_servers import Client, group, over_http, published, slow, turns, until
from tests.support.tiny_models import VOCAB, tiny_qwen3


async def begin(client: Client, root: Path, *groups: dict[str, object]) -> "asyncio.Future[Any]":
    """Sends weights, and waits until all samples of the groups are being generated."""
    await client.call("POST", "/control/update_weights", published(root, 1, tiny_qwen3()))
    slow(client.engine)
    generating = asyncio.ensure_future(client.generate(*groups))
    num_samples = sum(one["n"] for one in groups)  # type: ignore[misc]
    await until(lambda: client.engine.num_running == num_samples and client.engine.counts.steps > 3)
    return generating


def tokens(lines: dict[str, Any]) -> dict[str, list[list[int]]]:
    return {name: [sample["token_ids"] for sample in line["samples"]] for name, line in lines.items()}


LONG = [group(str(i), n=4, seed=i, min_new_tokens=50, max_new_tokens=50) for i in range(4)]
"""All have the same length, so that the number of running sequences does not depend on timing."""


def alone() -> dict[str, list[list[int]]]:
    groups = [parse_group(one, VOCAB) for one in LONG]
    done = LLMEngine(tiny_qwen3(), max_running_requests=64).generate(groups)
    return {one.id: [sample.token_ids for sample in one.samples] for one in done}


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_a_pause_stops_generation_and_changes_no_answer(tmp_path: Path, mode: str) -> None:
    async def test(client: Client) -> None:
        generating = await begin(client, tmp_path, *LONG)
        response = await client.call("POST", "/control/pause", {"mode": mode})
        assert response == {"paused": True, "mode": mode, "running": 16}
        assert client.engine.num_running == (16 if mode == "keep" else 0)
        assert (await client.open("GET", "/health"))[1]["status"] == "paused"
        steps = client.engine.counts.steps
        waiting = client.engine.num_waiting
        late = asyncio.ensure_future(client.generate(group("late", max_new_tokens=2)))
        await until(lambda: client.engine.num_waiting > waiting)
        await turns(client)
        assert (client.engine.counts.steps, generating.done(), late.done()) == (steps, False, False)
        await client.call("POST", "/control/resume")
        assert tokens(await generating) == alone()
        assert "samples" in (await late)["late"]

    over_http(test)


def test_a_waiting_pause_lets_running_groups_end_and_starts_none(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        generating = await begin(client, tmp_path, *LONG)
        pause = asyncio.ensure_future(client.call("POST", "/control/pause", {"mode": "wait"}))
        await until(lambda: not client.engine.starts_groups)
        late = asyncio.ensure_future(client.generate(group("late", max_new_tokens=2)))
        assert await pause == {"paused": True, "mode": "wait", "running": 0}
        assert tokens(await generating) == alone()
        assert (client.engine.num_running, client.engine.num_waiting, late.done()) == (0, 1, False)
        await client.call("POST", "/control/resume")
        assert "samples" in (await late)["late"]

    over_http(test)


def test_a_resume_cancels_a_waiting_pause(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        generating = await begin(client, tmp_path, *LONG)
        pause = asyncio.ensure_future(client.call("POST", "/control/pause", {"mode": "wait"}))
        await until(lambda: not client.engine.starts_groups)
        await client.call("POST", "/control/resume")
        with pytest.raises(HttpError, match="resumed while the pause waited for running requests") as refused:
            await pause
        assert refused.value.status == 409
        assert tokens(await generating) == alone()
        with pytest.raises(HttpError, match="mode: 'now' is not known; there are keep, wait, abort, auto"):
            await client.call("POST", "/control/pause", {"mode": "now"})

    over_http(test)


def test_new_weights_during_an_abort_pause_recompute_resumed_sequences(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        request = group("g", n=2, max_new_tokens=30)
        generating = await begin(client, tmp_path, request)
        await client.call("POST", "/control/pause", {"mode": "abort"})
        await client.call("POST", "/control/update_weights", published(tmp_path, 2, tiny_qwen3(1)))
        await client.call("POST", "/control/resume")
        before, after = tiny_qwen3(0), tiny_qwen3(1)
        for sample in (await generating)["g"]["samples"]:
            first = sample["versions"].count(1)
            assert 0 < first < len(sample["versions"]) and sample["versions"] == sorted(sample["versions"])
            ids, prompt = sample["token_ids"], list(request["prompt"])  # type: ignore[call-overload]
            expected = expected_logprobs(before, prompt, ids[:first]).tolist()
            expected += expected_logprobs(after, [*prompt, *ids[:first]], ids[first:]).tolist()
            assert sample["logprobs"] == pytest.approx(expected, abs=1e-5)

    over_http(test)


def test_smaller_priorities_go_first_and_equal_ones_in_order() -> None:
    engine = LLMEngine(tiny_qwen3(), max_running_requests=1)
    order: list[str] = []
    for name, priority in (("a", 0), ("c", 5), ("d", 5), ("b", 1), ("first", -3)):
        engine.submit(GroupRequest(name, (5, 9), 1, 0, Sampling(max_new_tokens=2), priority=priority))
    while engine.has_work:
        order += [one.id for one in engine.step()]
    assert order == ["first", "a", "b", "c", "d"]


LONGEST = {"min_new_tokens": 59, "max_new_tokens": 59}


def test_a_group_ends_at_its_deadline_and_the_error_names_it(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        unlimited = asyncio.ensure_future(await begin(client, tmp_path, group("unlimited", n=62, **LONGEST)))
        late = [{**group(name, n=2, **LONGEST), "deadline_s": 0.2} for name in ("running", "waiting")]
        lines = await client.generate(*late)
        assert {name: line["error"] for name, line in lines.items()} == dict.fromkeys(
            ("running", "waiting"), "deadline: not done within 0.2 s (deadline_s)"
        )
        assert (await client.call("GET", "/control/statistics"))["expired"] == 2
        await until(lambda: client.engine.num_running == 62 and not client.engine.num_waiting)
        assert len((await unlimited)["unlimited"]["samples"]) == 62

    over_http(test)


def test_deadlines_pass_while_a_server_is_paused(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3()))
        await client.call("POST", "/control/pause")
        lines = await client.generate({**group("g"), "deadline_s": 0.1})
        assert lines["g"]["error"].startswith("deadline: not done within 0.1 s")
        steps = client.engine.counts.steps
        await turns(client)
        assert client.engine.counts.steps == steps

    over_http(test)


@pytest.mark.parametrize("changes", [{"deadline_s": 0}, {"deadline_s": "1"}, {"priority": 1.5}, {"priority": "high"}])
def test_an_invalid_deadline_or_priority_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=f"^{next(iter(changes))}: "):
        parse_group({"id": "g", "prompt": [5], **changes}, VOCAB)
