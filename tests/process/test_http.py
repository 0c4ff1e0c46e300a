"""HTTP clients and servers of a run: JSON, frames, errors, tokens."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.frames import pack
from areal_like.process.http import HttpClient, application, binary_response, json_response, read_json, serve
from areal_like.process.identity import CallGuard, Identity, call_headers

TRAINER = Identity("trainer", 0)


class TestClients:
    """One server, both kinds of clients."""

    @staticmethod
    def app():
        app = application(CallGuard("secret"), open_paths=("/health",))

        async def double(request: web.Request) -> web.Response:
            body = await read_json(request)
            if body["x"] < 0:
                raise HttpError(409, "x: must not be negative")
            return json_response({"x": 2 * body["x"]})

        async def echo(request: web.Request) -> web.Response:
            return binary_response(pack({"n": 1}, [await request.read()]))

        async def fault(_: web.Request) -> web.Response:
            raise RuntimeError("broken")

        async def health(_: web.Request) -> web.Response:
            return json_response({"status": "ok"})

        app.router.add_post("/double", double)
        app.router.add_post("/echo", echo)
        app.router.add_get("/fault", fault)
        app.router.add_get("/health", health)
        return app

    def run(self, check, secret="secret"):
        async def main():
            served = await serve(self.app(), "127.0.0.1")
            try:
                async with HttpClient(TRAINER, secret) as client:
                    await check(client, served.address)
            finally:
                await served.close()

        asyncio.run(main())

    def test_json_and_frames_are_exchanged(self):
        async def check(client, address):
            assert await client.json("POST", address, "/double", {"x": 4}) == {"x": 8}
            frame = await client.frame("POST", address, "/echo", b"bytes")
            assert (frame.header, bytes(frame.blobs[0])) == ({"n": 1}, b"bytes")

        self.run(check)

    def test_refusals_and_server_errors_have_their_message(self):
        async def check(client, address):
            with pytest.raises(HttpError, match="x: must not be negative") as refused:
                await client.json("POST", address, "/double", {"x": -1})
            assert refused.value.status == 409
            with pytest.raises(HttpError, match="RuntimeError: broken"):
                await client.json("GET", address, "/fault")
            with pytest.raises(HttpError, match="the body is not JSON"):
                await client.json("POST", address, "/double", b"{")
            with pytest.raises(HttpError) as refused:
                await client.json("GET", address, "/nowhere")
            assert refused.value.status == 404

        self.run(check)

    def test_without_the_token_only_open_paths_answer(self):
        async def check(_, address):
            async with aiohttp.ClientSession(headers=call_headers(TRAINER, "guessed")) as session:
                async with session.post(f"http://{address}/double", json={"x": 1}) as response:
                    assert response.status == 401 and "token" in await response.text()
                async with session.get(f"http://{address}/health") as response:
                    assert await response.json() == {"status": "ok"}

        self.run(check)

    def test_a_token_is_not_sent_to_a_server_that_cannot_prove_it(self):
        async def check(client, address):
            with pytest.raises(Unreachable, match="does not prove that it knows the secret"):
                await client.json("POST", address, "/double", {"x": 1})

        self.run(check, secret="guessed")

    def test_an_unreachable_server_is_named_with_its_address(self):
        async def check(client, address):
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
                await client.json("GET", "127.0.0.1:9", "/double")

        self.run(check)

    def test_the_blocking_client_does_the_same(self):
        async def check(_, address):
            def calls():
                client = BlockingHttpClient(TRAINER, "secret")
                try:
                    assert client.json("POST", address, "/double", {"x": 4}) == {"x": 8}
                    assert bytes(client.frame("POST", address, "/echo", b"b").blobs[0]) == b"b"
                    with pytest.raises(HttpError, match="x: must not be negative"):
                        client.json("POST", address, "/double", {"x": -1})
                    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
                        client.json("GET", "127.0.0.1:9", "/double")
                finally:
                    client.close()

            await asyncio.to_thread(calls)

        self.run(check)

    def test_a_call_without_headers_is_refused(self):
        async def check(_, address):
            async with aiohttp.ClientSession() as session, session.post(f"http://{address}/double") as response:
                assert response.status == 401

        self.run(check)
