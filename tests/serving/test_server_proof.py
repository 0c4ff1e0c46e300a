"""A server proves its identity before it gets the token: at the start, per connection, and when attached."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_like.process.errors import TimedOut
from areal_like.process.http import application, serve
from areal_like.process.identity import RUN_HEADER, RUN_ID, TOKEN, CallGuard
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofVerifier
from areal_like.process.server_proof import NONCE_HEADER, PROOF_HEADER, PROOF_PATH
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.base import EngineGone
from areal_like.serving.engines.external.attach import detect
from areal_like.serving.engines.external.http_calls import EngineClient
from areal_like.serving.token_guard import RequireToken
from tests.support.embedded_servers import SECRET as KEY
from tests.support.embedded_servers import running
from tests.support.external_processes import SECRET as RUN_SECRET
from tests.support.external_processes import external_server, write_run
from tests.support.impostors import SEAL, SECRET, Listener, foreign, http, passing_on, replays


async def ours(port: int = 0) -> Any:
    """The guard of an engine, in a server that says yes to everything behind it."""
    guard = RequireToken(_yes)

    async def reply(request: bytes) -> bytes:
        first, *lines = request.decode().split("\r\n")
        method, path, _ = first.split()
        headers = [tuple(part.strip().encode() for part in line.split(":", 1)) for line in lines if line]
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        scope = {"type": "http", "method": method, "path": path, "headers": headers, "server": ("127.0.0.1", one.port)}
        await guard(scope, receive, send)
        shown = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in sent[0]["headers"])
        length = "" if "content-length" in shown else "Content-Length: 0\r\n"
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return f"HTTP/1.1 {sent[0]['status']} OK\r\n{shown}{length}\r\n".encode() + body

    one = Listener(reply)
    return await one.start(port)


async def _yes(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {TOKEN: SECRET, RUN_ID: "run1", "AREAL_LIKE_PROCESS": "server/0"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AREAL_LIKE_ATTEMPT", "AREAL_LIKE_INCARNATION"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_proves_its_identity_before_it_gets_the_token() -> None:
    async def main() -> None:
        server = await ours()
        address = f"127.0.0.1:{server.port}"
        calls = EngineClient("vLLM", address, SECRET, ProofVerifier(SECRET, SEAL))
        await calls.post("/pause")
        before, _, after = server.heard.partition(b"POST /pause")
        assert f"GET {PROOF_PATH}".encode() in before and SECRET.encode() not in before
        assert SECRET.encode() in after
        await calls.close()
        await server.close()

    asyncio.run(main())


@pytest.mark.parametrize("reply", [foreign, replays])
def test_another_process_at_the_port_gets_no_token(reply: Any) -> None:
    async def main() -> None:
        stranger = await Listener(reply).start()
        address = f"127.0.0.1:{stranger.port}"
        calls = EngineClient("vLLM", address, SECRET, ProofVerifier(SECRET, SEAL))
        with pytest.raises(EngineGone, match="does not prove itself"):
            await calls.post("/generate", {"prompt": "a prompt of the run"})
        assert stranger.heard.startswith(f"GET {PROOF_PATH}".encode())
        assert SECRET.encode() not in stranger.heard and b"a prompt" not in stranger.heard
        await calls.close()
        await stranger.close()
        await stranger.close()

    asyncio.run(main())


def test_a_forwarded_proof_request_is_answered_for_the_servers_own_port() -> None:
    async def main() -> None:
        server = await ours()

        stranger = await Listener(passing_on(server.port)).start()
        for address, is_proven in ((f"127.0.0.1:{server.port}", True), (f"127.0.0.1:{stranger.port}", False)):
            proof_response = await request_proof(address)
            assert proof_response.start_id == SEAL and len(proof_response.proof) == 64
            if is_proven:
                ProofVerifier(SECRET, SEAL).check(proof_response)
                continue
            with pytest.raises(ProofFailed, match="does not prove that it knows the secret"):
                ProofVerifier(SECRET, SEAL).check(proof_response)
        await stranger.close()
        await server.close()
        await stranger.close()

    asyncio.run(main())


def test_a_process_at_the_port_of_a_dead_engine_gets_nothing_of_the_run() -> None:
    async def main() -> None:
        server = await ours()
        address = f"127.0.0.1:{server.port}"
        calls = EngineClient("vLLM", address, SECRET, ProofVerifier(SECRET, SEAL))
        await calls.post("/pause")
        assert calls._session is not None and calls._session.connector is not None
        await calls._session.connector.close()  # as all connections of a process that has died
        await calls._session.close()
        calls._session = None
        await server.close()
        stranger = await Listener(replays).start(server.port)
        with pytest.raises(EngineGone, match="does not prove itself"):
            await calls.post("/resume")
        assert SECRET.encode() not in stranger.heard and b"/resume" not in stranger.heard
        await calls.close()
        await stranger.close()
        await stranger.close()

    asyncio.run(main())


def test_each_connection_is_proved_before_anything_else_is_sent() -> None:
    async def main() -> None:
        server = await ours()
        address = f"127.0.0.1:{server.port}"
        calls = EngineClient("vLLM", address, SECRET, ProofVerifier(SECRET, SEAL))
        await asyncio.gather(*(calls.post("/generate", {}) for _ in range(20)))
        assert server.heard.count(b"POST /generate") == 20
        assert all(one.startswith(f"GET {PROOF_PATH}".encode()) for one in server.received_by_connection)
        await calls.close()
        await server.close()

    asyncio.run(main())


def test_a_proof_of_another_connection_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger lets the port go when it has been called, and the right server takes it."""

    async def main() -> None:
        async def hand_over() -> None:
            stranger.release_port()
            servers.append(await ours(stranger.port))
            handed_over.set()

        async def connect(connector: Any, *request: Any, **more: Any) -> Any:
            connection = await real_connect(connector, *request, **more)
            await handed_over.wait()
            return connection

        real_connect = aiohttp.TCPConnector.connect
        monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
        handed_over, servers = asyncio.Event(), list[Listener]()
        stranger = Listener(replays)
        stranger.on_connection = hand_over
        await stranger.start()
        calls = EngineClient("vLLM", f"127.0.0.1:{stranger.port}", SECRET, ProofVerifier(SECRET, SEAL))
        with pytest.raises(EngineGone, match="does not prove itself"):
            await calls.post("/generate", {"prompt": "a prompt of the run"})
        assert SECRET.encode() not in stranger.heard and b"a prompt" not in stranger.heard
        await calls.post("/generate")
        assert SECRET.encode() in servers[0].heard
        await calls.close()
        for one in (stranger, *servers):
            await one.close()

    asyncio.run(main())


def test_detection_does_not_send_the_key_to_an_unproven_server() -> None:
    """It has taken the place of a server that had proved itself."""

    async def main() -> None:
        stranger = await Listener(replays).start()
        with pytest.raises(TimedOut):
            waiting = NamedWait("the server", 0.0, "rollout.setup_timeout")
            await detect(f"127.0.0.1:{stranger.port}", KEY, ProofVerifier(KEY), waiting)
        assert stranger.heard and KEY.encode() not in stranger.heard
        await stranger.close()

    asyncio.run(main())


@pytest.mark.parametrize("nonce", ["", "x", "0" * 63, "0" * 65, "G" * 64, "\xe9" * 64])
def test_an_invalid_nonce_gets_no_proof(nonce: str) -> None:
    async def main() -> None:
        server = await ours()
        own = await serve(application(CallGuard(SECRET)), "127.0.0.1")
        async with aiohttp.ClientSession() as session:
            for address in (f"127.0.0.1:{server.port}", own.address):
                async with session.get(f"http://{address}{PROOF_PATH}", headers={NONCE_HEADER: nonce}) as answer:
                    assert answer.status == 400 and PROOF_HEADER not in answer.headers
        await own.close()
        await server.close()

    asyncio.run(main())


def attached_to(root: Path, reply: Any, *words: str) -> tuple[str, bytes]:
    """The failure message of a server that attaches there, and what it has sent."""

    async def main() -> tuple[str, bytes]:
        stranger = await Listener(reply).start()
        directory = write_run(root, "rollout.api_key_var=THEIR_KEY", "rollout.setup_timeout=60")
        with external_server(directory, "--attach", f"127.0.0.1:{stranger.port}", *words, THEIR_KEY=KEY) as one:
            assert await asyncio.to_thread(one.code) == 1
            await stranger.close()
            return one.note["message"], stranger.heard

    return asyncio.run(main())


def test_a_server_that_only_claims_to_be_ours_does_not_get_the_key(tmp_path: Path) -> None:
    message, heard = attached_to(tmp_path, replays)
    assert message.startswith("rollout.api_key_var: ") and message.endswith("nothing was sent")
    assert KEY.encode() not in heard and RUN_SECRET.encode() not in heard


def test_a_server_that_answers_like_ours_without_a_proof_does_not_get_the_key(tmp_path: Path) -> None:
    async def healthy(request: bytes) -> bytes:
        if not request.startswith(b"GET /health"):
            return http()
        body = b'{"run_id": "x", "version": -1}'
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    message, heard = attached_to(tmp_path, healthy)
    assert message.startswith("rollout.server_addresses: ") and "so the key was not sent" in message
    assert KEY.encode() not in heard


def test_a_server_proves_its_identity_on_its_port(tmp_path: Path) -> None:
    async def main() -> None:
        async with running() as server:
            proof_response = await request_proof(server.address)
            assert proof_response.is_ours and RUN_HEADER not in proof_response.start_id
            ProofVerifier(KEY).check(proof_response)
            with pytest.raises(ProofFailed):
                ProofVerifier("another key").check(proof_response)

    asyncio.run(main())
