"""The token is sent only on connections whose server has proved that it knows it."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from aiohttp import web

from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import Unreachable
from areal_like.process.http import HttpClient, HttpServer, application, json_response, run_async, serve
from areal_like.process.identity import CallGuard
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofRequest, ProofVerifier
from areal_like.process.server_proof import endpoint_of, is_proof, make_proof, new_nonce
from areal_like.rollout.episodes.generation_client import GenerationClient, LeaseRoute
from tests.support.impostors import SECRET, Listener, foreign, passing_on, replays
from tests.support.ring_parts import SECRET as RING_SECRET
from tests.support.ring_parts import WORKER, Server, open_server

OTHER_HOSTS = ("127.0.0.2", "::1")


async def ours(port: int = 0, host: str = "127.0.0.1") -> HttpServer:
    async def yes(_: web.Request) -> web.Response:
        return json_response({"ok": True})

    app = application(CallGuard(SECRET))
    app.router.add_post("/yes", yes)
    return await serve(app, host, port)


class BlockingInAThread:
    """The blocking client with the interface of `HttpClient`."""

    def __init__(self) -> None:
        self._caller = BlockingHttpClient(WORKER, SECRET)

    async def json(self, *words: Any) -> Any:
        return await asyncio.to_thread(self._caller.json, *words)

    async def __aenter__(self) -> "BlockingInAThread":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._caller.close()


CALLERS = pytest.mark.parametrize(
    "caller", [lambda: HttpClient(WORKER, SECRET), BlockingInAThread], ids=["loop", "none"]
)


@CALLERS
@pytest.mark.parametrize("reply", [foreign, replays])
def test_a_process_that_took_a_servers_port_receives_no_call(caller: Any, reply: Any) -> None:
    async def main() -> None:
        stranger = await Listener(reply).start()
        async with caller() as calls:
            with pytest.raises(Unreachable, match="answers at"):
                await calls.json("POST", f"127.0.0.1:{stranger.port}", "/yes", {"prompt": "of the run"})
        await stranger.close()
        assert stranger.heard.startswith(b"GET /areal-like/proof")
        assert SECRET.encode() not in stranger.heard and b"/yes" not in stranger.heard

    asyncio.run(main())


@CALLERS
def test_a_program_that_takes_a_dead_server_s_port_gets_nothing_of_the_run(caller: Any) -> None:
    async def main() -> None:
        served = await ours()
        port = int(served.address.rpartition(":")[2])
        async with caller() as calls:
            assert await calls.json("POST", served.address, "/yes", {}) == {"ok": True}
            await served.close()
            stranger = await Listener(replays).start(port)
            with pytest.raises(Unreachable):
                await calls.json("POST", served.address, "/yes", {})
        await stranger.close()
        assert stranger.heard and SECRET.encode() not in stranger.heard

    run_async(main())


@CALLERS
def test_a_connection_is_proved_once_for_all_its_calls(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[str] = []
    real = CallGuard.prove

    def noted(guard: CallGuard, nonce: str, place: str) -> str | None:
        proofs.append(place)
        return real(guard, nonce, place)

    monkeypatch.setattr(CallGuard, "prove", noted)

    async def main() -> None:
        served = await ours()
        async with caller() as calls:
            for _ in range(5):
                assert await calls.json("POST", served.address, "/yes", {}) == {"ok": True}
        await served.close()
        assert proofs == [served.address]

    run_async(main())


def test_a_worker_whose_servers_port_was_taken_uses_another_server() -> None:
    async def main() -> None:
        stranger = await Listener(foreign).start()
        async with open_server(Server()) as server, HttpClient(WORKER, RING_SECRET) as caller:

            async def another(lease: str, gone: str) -> str:
                assert gone == f"127.0.0.1:{stranger.port}"
                return server.address

            client = GenerationClient(caller, 30.0, 3, another)
            group = {"id": "1.1/0", "prompt": [3, 4, 12], "n": 2, "seed": 1, "sampling": {}, "order": None}
            assert len(await client.generate(LeaseRoute("1.1", f"127.0.0.1:{stranger.port}"), group)) == 2
            await client.close()
        await stranger.close()
        assert stranger.heard and RING_SECRET.encode() not in stranger.heard

    asyncio.run(main())


@CALLERS
@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_a_relay_on_another_address_cannot_forward_the_proof(caller: Any, host: str) -> None:
    async def main() -> None:
        served = await ours()
        port = int(served.address.rpartition(":")[2])
        stranger = Listener(passing_on(port))
        try:
            await stranger.start(port, host)
        except OSError as fault:
            await served.close()
            pytest.skip(f"this machine has no {host}: {fault}")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        async with caller() as calls:
            with pytest.raises(Unreachable, match="does not prove that it knows the secret"):
                await calls.json("POST", address, "/yes", {})
            assert await calls.json("POST", served.address, "/yes", {}) == {"ok": True}
        await stranger.close()
        await served.close()
        assert stranger.heard and SECRET.encode() not in stranger.heard

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost"])
def test_a_server_that_listens_at_many_addresses_proves_itself_at_each(host: str) -> None:
    async def main() -> None:
        with contextlib.closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        try:
            served = await ours(port, host)
        except OSError as fault:
            pytest.skip(f"this machine has no {host}: {fault}")
        for name in ("127.0.0.1", "localhost"):
            with contextlib.suppress(ConnectionRefusedError):  # "::" may be IPv6 alone
                ProofVerifier(SECRET).check_connection(await request_proof(f"{name}:{port}"))
        await served.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("end", "place"),
    [
        (("127.0.0.1", 80), "127.0.0.1:80"),
        (("::ffff:127.0.0.1", 80, 0, 0), "127.0.0.1:80"),
        (("::1", 80, 0, 0), "[::1]:80"),
        (("fe80::1%eth0", 80, 0, 2), "[fe80::1]:80"),
        (("/a/socket", None), None),
        ("/a/socket", None),
        (None, None),
    ],
)
def test_both_ends_of_a_connection_compute_the_same_endpoint(end: Any, place: str | None) -> None:
    assert endpoint_of(end) == place


def test_a_proof_is_for_one_address_and_one_port() -> None:
    nonce = new_nonce()
    proof = make_proof(SECRET, nonce, "127.0.0.1:80", "") or ""
    assert is_proof(proof, SECRET, nonce, "127.0.0.1:80", "")
    for other in ("127.0.0.1:81", "[::1]:80"):
        assert not is_proof(proof, SECRET, nonce, other, "")


def test_a_proof_response_is_read_in_parts_and_may_have_no_rest() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Areal-Proof: abc\r\n\r\n"
    question = ProofRequest(("127.0.0.1", 80))
    *before, last = (question.feed(head[at : at + 1]) for at in range(len(head)))
    assert before == [None] * (len(head) - 1) and last is not None and last.is_whole and last.proof == "abc"
    for rest in (head + b"x", head.replace(b" 0", b" 3"), head.replace(b"200", b"404")):
        proof_response = ProofRequest(("127.0.0.1", 80)).feed(rest)
        assert proof_response is not None and not proof_response.is_whole
    for garbage in (b"SSH-2.0", b"HTTP/1.1 200" + b"x" * (1 << 14)):
        with pytest.raises(ProofFailed, match="does not speak HTTP"):
            ProofRequest(("127.0.0.1", 80)).feed(garbage)
    with pytest.raises(ConnectionError):
        ProofRequest(("127.0.0.1", 80)).feed(b"")
