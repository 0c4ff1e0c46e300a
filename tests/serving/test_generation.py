"""Groups in front of an external engine: complete samples after every interruption, and errors for single groups."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from areal_like.process.errors import Failure, HttpError
from areal_like.serving.engines.base import MAX_IN_FLIGHT, GenerateOutput, GenerateRequest
from tests.support.external_server import CONTEXT, PROMPT, Client, check, group, until, until_tokens, with_server
from tests.support.tiny_models import EOS_ID, VOCAB

NO_END = {"min_new_tokens": 40, "max_new_tokens": 40}


def same(version: int) -> int:
    return version


def test_samples_are_in_order_and_have_the_requested_length(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        results = await client.generate(group("a", n=3), group("b", n=2, seed=4, min_new_tokens=6))
        assert [len(results[name]["samples"]) for name in "ab"] == [3, 2]
        again = await client.generate(group("a", n=3))
        assert again["a"] == results["a"]
        for line in results.values():
            for sample in line["samples"]:
                check(sample, same)
                ends = sample["token_ids"][-1] == EOS_ID
                assert sample["finish"] == ("stop" if ends else "length") and len(sample["token_ids"]) <= 6
        assert all(len(sample["token_ids"]) == 6 for sample in results["b"]["samples"])

    with_server(tmp_path, test)


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_answers_continue_after_a_pause_without_lost_or_doubled_tokens(tmp_path: Path, mode: str) -> None:
    async def test(client: Client) -> None:
        engine = client.engine
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(*(group(f"g{n}", n=2, seed=n, **NO_END) for n in range(4))))
        await until(lambda: len(engine.in_flight) == 4)
        await until_tokens(engine, 8)
        answer = await client.call("POST", "/control/pause", {"mode": mode})
        assert answer["mode"] == mode and (await client.call("GET", "/health"))["status"] == "paused"
        assert answer["running"] == (4 if mode == "keep" else 0)
        later = asyncio.create_task(client.generate(group("later")))
        await until(lambda: client.server.queue.waiting > 0 or "later" in [request.id for request in engine.requests])
        assert not later.done() and asking.done() == (mode == "wait")
        await client.call("POST", "/control/resume")
        results = await asking | await later
        for name, line in results.items():
            for sample in line["samples"]:
                check(sample, same)
                if name != "later":
                    assert len(sample["token_ids"]) == 40 and sample["finish"] == "length"
        continued = (await client.call("GET", "/control/statistics"))["continued"]
        assert (continued > 0) == (mode == "abort")
        if mode == "abort":
            parts = [request for request in engine.requests if len(request.prompt) > len(PROMPT)]
            assert parts and all(request.n == 1 for request in parts)
            for request in parts:
                have = len(request.prompt) - len(PROMPT)
                assert request.sampling["max_new_tokens"] == request.sampling["min_new_tokens"] == 40 - have
            assert len({(request.seed, len(request.prompt)) for request in parts}) == len(parts)

    with_server(tmp_path, test, can_keep=True, token_s=0.01)


def test_an_unsupported_pause_is_refused_with_a_message(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        for mode, status, message in (("keep", 409, "cannot keep requests"), ("freeze", 400, "'freeze' is not known")):
            with pytest.raises(HttpError, match=message) as refusal:
                await client.call("POST", "/control/pause", {"mode": mode})
            assert refusal.value.status == status

    with_server(tmp_path, test, can_keep=False)


@pytest.mark.parametrize("how", [{"frequency_penalty": 0.5}, {"repetition_penalty": 1.2}, {"stop": ["x"]}])
def test_an_interrupted_answer_with_penalties_or_stop_texts_starts_again(tmp_path: Path, how: dict[str, Any]) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(group("g", **NO_END, **how)))
        await until(lambda: len(client.engine.in_flight) == 1)
        await until_tokens(client.engine, 4)
        await client.call("POST", "/control/pause", {"mode": "abort"})
        await client.call("POST", "/control/resume")
        (sample,) = (await asking)["g"]["samples"]
        assert len(sample["token_ids"]) == 40
        first, second = client.engine.requests
        assert list(second.prompt) == PROMPT and second.sampling == first.sampling and second.seed != first.seed

    with_server(tmp_path, test, token_s=0.02)


def test_an_invalid_group_gets_an_error_and_affects_no_other_group(tmp_path: Path) -> None:
    bad: dict[str, dict[str, Any]] = {
        "empty": {"prompt": []},
        "no token": {"prompt": [VOCAB]},
        "too long": {"prompt": [5] * CONTEXT},
        "past the run's limit": {"sampling": {"max_tokens": 3}},
        "of another kind": {"surprise": 1},
        "refused by the engine": {"seed": 666},
        "failed": {"seed": 667},
    }
    words = {
        "empty": "prompt: give at least one token id",
        "no token": f"{VOCAB} is not a token of this model",
        "too long": "vllm.max_model_len: the prompt has 64 tokens",
        "past the run's limit": "gconfig.max_tokens: the prompt has 4 tokens, and 3 leave no room",
        "of another kind": "surprise",
        "refused by the engine": "the engine says no",
        "failed": "KeyError",
    }

    def refuse(request: GenerateRequest) -> None:
        if request.seed == 666:
            raise ValueError("the engine says no")
        if request.seed == 667:
            raise KeyError("choices")

    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        client.engine.refuses = refuse
        results = await client.generate(
            group("good"), *(group(name) | change for name, change in bad.items()), group("good too")
        )
        assert len(results) == 2 + len(bad)
        assert "samples" in results["good"] and "samples" in results["good too"]
        for name, message in words.items():
            assert message in results[name]["error"], results[name]

    with_server(tmp_path, test)


def test_an_answer_ends_where_the_context_ends(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        results = await client.generate(group("g", max_new_tokens=1000, min_new_tokens=1000))
        (sample,) = results["g"]["samples"]
        assert len(sample["token_ids"]) == CONTEXT - len(PROMPT) and sample["finish"] == "length"

    with_server(tmp_path, test)


def test_a_group_past_its_deadline_ends_with_an_error_and_its_request_is_aborted(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        with_deadline = group("limited", **NO_END) | {"deadline_s": 0.2}
        results = await client.generate(with_deadline, group("unlimited"))
        assert results["limited"]["error"].startswith("deadline: ") and "samples" in results["unlimited"]
        await until(lambda: not client.engine.in_flight)
        assert "abort 1" in client.engine.log

    with_server(tmp_path, test, token_s=0.02)


def test_groups_are_aborted_by_id_and_others_continue(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(*(group(name, **NO_END) for name in ("a", "b", "c"))))
        await until(lambda: len(client.engine.in_flight) == 3)
        assert await client.call("POST", "/control/abort", {"ids": ["a", "nobody"]}) == {"aborted": 1}
        await until(lambda: len(client.engine.in_flight) == 2)
        results = await asking
        assert results["a"]["error"] == "aborted: on request"
        assert all("samples" in results[name] for name in "bc")
        with pytest.raises(HttpError, match="ids: give"):
            await client.call("POST", "/control/abort", {"ids": 3})

    with_server(tmp_path, test, token_s=0.02)


def test_a_disconnected_client_ends_its_groups(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(*(group(str(n), **NO_END) for n in range(5))))
        await until(lambda: len(client.engine.in_flight) == 5)
        asking.cancel()
        await until(lambda: not client.engine.in_flight)
        assert client.server.queue.running == 0

    with_server(tmp_path, test, token_s=0.05)


def test_groups_run_in_the_order_of_their_priority(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        client.server.queue._max_running = 1
        groups = [group(str(n), max_new_tokens=1) | {"priority": n % 3} for n in range(9)]
        await client.call("POST", "/control/pause", {"mode": "wait"})
        asking = asyncio.create_task(client.generate(*groups))
        await until(lambda: client.server.queue.waiting == 9)
        await client.call("POST", "/control/resume")
        await asking
        assert [request.priority for request in client.engine.requests] == [0] * 3 + [1] * 3 + [2] * 3
        assert client.engine.most_at_once == 1

    with_server(tmp_path, test)


def test_thousands_of_groups_wait_in_the_queue_and_not_on_connections(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        count = MAX_IN_FLIGHT + 500
        await client.engine.pause("keep")
        asking = asyncio.create_task(client.generate(*(group(str(n), max_new_tokens=1) for n in range(count))))
        await until(lambda: client.server.queue.running == MAX_IN_FLIGHT)
        assert (await client.call("GET", "/control/statistics"))["waiting"] == count - MAX_IN_FLIGHT
        await client.engine.resume()
        results = await asking
        assert len(results) == count and all("samples" in line for line in results.values())
        assert client.engine.most_at_once == MAX_IN_FLIGHT

    with_server(tmp_path, test)


def test_a_thousand_clients_are_answered(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        results = await asyncio.gather(*(client.generate(group(str(n), max_new_tokens=1)) for n in range(1000)))
        assert all("samples" in line[str(n)] for n, line in enumerate(results))

    with_server(tmp_path, test)


def test_answers_of_a_dead_engine_are_cut_off_and_not_ended_regularly(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        body = orjson.dumps({"groups": [group("g", **NO_END)]})
        async with client.caller.session.post(f"http://{client.address}/generate", data=body) as response:
            await until(lambda: len(client.engine.in_flight) == 1)
            client.engine.stopped = True
            client.engine_exit.set_result(Failure("it has ended"))
            with pytest.raises(Exception, match=r"(?i)payload|disconnected|reset|connection"):
                await response.read()

    with_server(tmp_path, test, token_s=0.01)


def test_a_failed_request_does_not_interrupt_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from areal_like.serving import server
    from areal_like.serving.engines.base import EngineGone

    monkeypatch.setattr(server, "EXIT_DETECTED_S", 0.2)

    def refuse(request: GenerateRequest) -> None:
        if request.seed == 666:
            raise EngineGone("the engine failed at it")

    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        client.engine.refuses = refuse
        results = await client.generate(group("bad", seed=666), group("good"))
        assert results["bad"]["error"] == "the engine failed at it" and "samples" in results["good"]

    with_server(tmp_path, test)


def test_requests_that_end_empty_are_repeated_with_growing_pauses_then_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from areal_like.serving import generation

    monkeypatch.setattr(generation, "FIRST_PAUSE_S", 0.01)

    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        whole, times = client.engine.generate, []

        async def nothing(request: GenerateRequest) -> list[GenerateOutput]:
            if request.priority != 7:
                return await whole(request)
            times.append(asyncio.get_running_loop().time())
            return [GenerateOutput([], [], "abort", [])] * request.n

        monkeypatch.setattr(client.engine, "generate", nothing)
        results = await client.generate(group("bad") | {"priority": 7}, group("good"))
        assert results["bad"]["error"].endswith("times in a row without a token") and "samples" in results["good"]
        assert len(times) == generation.MAX_EMPTY_OUTPUTS + 1
        assert times[-1] - times[-2] > 10 * 0.01

    with_server(tmp_path, test)


def test_a_pause_without_a_mode_is_one_that_the_engine_supports(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path / str(client.engine.can_keep), 1, 1)
        answer = await client.call("POST", "/control/pause")
        assert answer["mode"] == ("keep" if client.engine.can_keep else "abort")
        await client.call("POST", "/control/resume")
        assert "samples" in (await client.generate(group("g")))["g"]

    for can_keep in (True, False):
        (root := tmp_path / str(can_keep)).mkdir()
        with_server(root, test, can_keep=can_keep)


def test_an_engine_that_ignores_an_abort_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        monkeypatch.setattr(client.engine, "_is_over", lambda in_flight: False)
        asking = asyncio.create_task(client.generate(group("g", **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        with pytest.raises(HttpError, match=r"1 aborted requests within 0\.5 s \(rollout\.call_timeout\)") as refusal:
            await client.call("POST", "/control/pause", {"mode": "abort"})
        assert refusal.value.status == 503 and client.server.queue.is_open
        assert "samples" in (await asking)["g"]

    with_server(tmp_path, test, token_s=0.03, call_timeout_s=0.5)
