"""Generation client: one request for concurrent calls, retries, and servers that are gone."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from areal_like.process.http import HttpClient
from areal_like.rollout.episodes.generation_client import (
    GenerationClient,
    GenerationError,
    LeaseCancelled,
    LeaseRoute,
    Superseded,
)
from tests.support.ring_parts import SECRET, WORKER, Server, close_connection, open_server, refuse


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("areal_like.rollout.episodes.generation_client.RETRY_DELAY_S", 0.01)


def group(number, n=2):
    return {"id": f"{number}.1/0", "prompt": [3, 4, 12], "n": n, "seed": number, "sampling": {}, "order": None}


async def nowhere(lease, gone):
    raise AssertionError(f"{lease} should stay at {gone}")


@asynccontextmanager
async def open_client(timeout_s=30.0, retries=3, another_server=nowhere):
    async with HttpClient(WORKER, SECRET) as caller:
        client = GenerationClient(caller, timeout_s, retries, another_server)
        try:
            yield client
        finally:
            await client.close()


async def ask(server, retries=3, count=1, **options):
    async with open_client(retries=retries, **options) as client:
        calls = (client.generate(LeaseRoute(f"{number}.1", server.address), group(number)) for number in range(count))
        return await asyncio.gather(*calls, return_exceptions=True)


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_simultaneous_calls_are_one_request_and_later_ones_another():
    async def main():
        async with open_server() as server, open_client() as client:
            route = LeaseRoute("0.1", server.address)
            first = await asyncio.gather(*(client.generate(route, group(number)) for number in range(20)))
            await client.generate(route, group(99))
            return first, server.requests

    first, requests = asyncio.run(main())
    assert [len(groups) for groups in requests] == [20, 1]
    assert [each["seed"] for each in requests[0]] == list(range(20))
    assert all(len(samples) == 2 and samples[0]["token_ids"] == [2, 6, 8, 1] for samples in first)


def test_a_server_gets_the_deadline_of_a_request():
    async def main():
        async with open_server() as server, open_client(timeout_s=7.5) as client:
            await client.generate(LeaseRoute("0.1", server.address), group(0))
            return server.requests

    assert asyncio.run(main())[0][0]["deadline_s"] == 7.5


def test_each_server_has_its_own_request():
    async def main():
        async with open_server() as one, open_server() as two, open_client() as client:
            calls = [(number, server) for number in range(4) for server in (one, two)]
            await asyncio.gather(
                *(client.generate(LeaseRoute("x", s.address), group(f"{n}{s.address}")) for n, s in calls)
            )
            return len(one.requests), len(two.requests)

    assert asyncio.run(main()) == (1, 1)


def test_a_group_is_returned_as_soon_as_it_is_complete():
    async def main():
        server = Server()
        gate = server.gate = asyncio.Event()
        gate.set()

        def answer_for(group):
            gate.clear()
            return server.samples(group)

        server.answer_for = answer_for
        async with open_server(server), open_client() as client:
            route = LeaseRoute("0.1", server.address)
            calls = [asyncio.create_task(client.generate(route, group(number))) for number in range(2)]
            await calls[0]
            assert not calls[1].done()
            gate.set()
            await calls[1]

    asyncio.run(main())


@pytest.mark.parametrize(
    "fault", [refuse(500), refuse(503), refuse(429), close_connection], ids=["500", "503", "429", "cut"]
)
def test_temporary_errors_are_retried_with_the_same_seed(fault):
    async def main():
        async with open_server() as server:
            server.fails = [fault, fault]
            return await ask(server), server.requests

    answers, requests = asyncio.run(main())
    assert len(answers[0]) == 2
    assert [groups[0]["seed"] for groups in requests] == [0]


def test_only_the_groups_without_an_answer_are_asked_again():
    async def main():
        server = Server()
        failed: list[int] = []

        def answer_for(group):
            if group["seed"] == 2 and not failed:
                failed.append(1)
                return {"id": group["id"], "error": "its cache is full"}
            return server.samples(group)

        server.answer_for = answer_for
        async with open_server(server):
            return await ask(server, count=4), server.requests

    answers, requests = asyncio.run(main())
    assert all(len(samples) == 2 for samples in answers)
    assert [[each["seed"] for each in groups] for groups in requests] == [[0, 1, 2, 3], [2]]


def test_a_broken_connection_loses_only_the_remaining_groups():
    async def main():
        server = Server()
        cut: list[int] = []

        def answer_for(group):
            if group["seed"] == 1 and not cut:
                cut.append(1)
                return None
            return server.samples(group)

        server.answer_for = answer_for
        async with open_server(server):
            return await ask(server, count=3), server.requests

    answers, requests = asyncio.run(main())
    assert all(len(samples) == 2 for samples in answers)
    assert sorted(each["seed"] for groups in requests[1:] for each in groups) == [1, 2]


@pytest.mark.parametrize("answer", [{"id": "0.1/0"}, {"text": "hello"}, ["0.1/0"]], ids=["bare", "other", "list"])
def test_an_unreadable_response_is_an_error_without_a_further_wait(answer):
    async def main():
        server = Server()
        server.answer_for = lambda group: answer
        async with open_server(server):
            async with asyncio.timeout(60):
                return await ask(server, retries=0)

    error = asyncio.run(main())[0]
    assert isinstance(error, GenerationError) and "its answer cannot be read" in str(error)


@pytest.mark.parametrize(
    ("fault", "retries", "message"),
    [
        (refuse(500, "out of memory"), 2, "after 3 tries (rollout.request_retries): out of memory"),
        (refuse(500, "out of memory"), 0, "after one try: out of memory"),
        (refuse(400, "the prompt is too long"), 3, "refuses the request: the prompt is too long"),
    ],
)
def test_a_lasting_error_has_the_servers_message(fault, retries, message):
    async def main():
        async with open_server() as server:
            server.fails = [fault] * 10
            answers = await ask(server, retries)
            return answers[0], 10 - len(server.fails)

    error, tries = asyncio.run(main())
    assert isinstance(error, GenerationError) and message in str(error)
    assert tries == (1 if "400" in message or "refuses" in message else retries + 1)


@pytest.mark.parametrize("status", [401, 409])
def test_a_process_that_was_replaced_stops(status):
    async def main():
        async with open_server() as server:
            server.fails = [refuse(status, "an older attempt")]
            return await ask(server)

    assert isinstance(asyncio.run(main())[0], Superseded)


def test_a_timeout_names_its_key():
    async def main():
        server = Server()
        server.gate = asyncio.Event()
        async with open_server(server):
            error = await ask(server, retries=0, timeout_s=0.2)
            server.gate.set()
            return error

    assert "no answer within 0.2 s (rollout.request_timeout)" in str(asyncio.run(main())[0])


def test_another_server_is_requested_only_when_this_one_is_lost():
    async def main():
        async with open_server() as new:
            requests = []

            async def another_server(lease, gone):
                requests.append((lease, gone))
                return new.address

            async with open_client(another_server=another_server) as client:
                route = LeaseRoute("7.1", free_address())
                old = route.server
                samples = await client.generate(route, group(7))
                await client.generate(route, group(8))
            return samples, requests == [("7.1", old)], route.server == new.address

    samples, requests, moved = asyncio.run(main())
    assert len(samples) == 2 and requests and moved


def test_a_cancelled_lease_ends_its_requests():
    async def main():
        async def another_server(lease, gone):
            raise LeaseCancelled(lease)

        async with open_client(another_server=another_server) as client:
            await client.generate(LeaseRoute("7.1", free_address()), group(7))

    with pytest.raises(LeaseCancelled):
        asyncio.run(main())


def test_too_few_samples_are_an_error():
    async def main():
        server = Server()
        server.answer_for = lambda group: server.samples(group | {"n": 1})
        async with open_server(server):
            return await ask(server, retries=0)

    assert "it returned 1 samples instead of 2" in str(asyncio.run(main())[0])


def test_abandoned_calls_are_aborted_at_the_server():
    async def main():
        server = Server()
        server.gate = asyncio.Event()
        async with open_server(server), open_client() as client:
            route = LeaseRoute("0.1", server.address)
            calls = [asyncio.create_task(client.generate(route, group(number))) for number in range(2)]
            while not server.requests:
                await asyncio.sleep(0.01)
            calls[0].cancel()
            await asyncio.wait(calls[:1])
            assert server.disconnected == 0
            calls[1].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            while not server.disconnected:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
