"""What the processes of a run share: who they are, how they call each other, how they wait and end."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web

from areal_like.process.atomic_file import CHUNK_BYTES, complete_lines_end
from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import HttpError, TimedOut, Unreachable
from areal_like.process.frames import pack, unpack
from areal_like.process.http import HttpClient, application, binary_response, json_response, read_json, serve
from areal_like.process.identity import CallGuard, Identity, call_headers
from areal_like.process.seeds import derive_seed
from areal_like.process.wait import NamedWait
from tests.support.commands import REPOSITORY

TRAINER = Identity("trainer", 0)


class TestGuard:
    def test_lets_in_who_knows_the_token(self):
        assert CallGuard("secret").refuse(call_headers(TRAINER, "secret")) is None

    @pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
    def test_refuses_who_does_not(self, headers):
        refused = CallGuard("secret").refuse({**call_headers(TRAINER, "secret"), "Authorization": "", **headers})
        assert refused is not None and refused[0] == 401

    def test_refuses_an_older_attempt_of_anybody(self):
        guard = CallGuard("secret")
        seen: list[int] = []
        guard.on_new_attempt = seen.append
        assert guard.refuse(call_headers(Identity("trainer", 0, attempt=2), "secret")) is None
        refused = guard.refuse(call_headers(Identity("rollout", 0, attempt=1), "secret"))
        assert refused is not None and refused[0] == 409 and "attempt 1" in refused[1]
        assert seen == [2]

    def test_refuses_an_older_incarnation_of_the_same_process_only(self):
        guard = CallGuard("secret")
        assert guard.refuse(call_headers(Identity("episodes", 0, 1, 2), "secret")) is None
        assert guard.refuse(call_headers(Identity("episodes", 1, 1, 1), "secret")) is None
        refused = guard.refuse(call_headers(Identity("episodes", 0, 1, 1), "secret"))
        assert refused is not None and refused[0] == 409

    def test_refuses_a_call_that_does_not_say_its_attempt(self):
        refused = CallGuard("secret").refuse({"Authorization": "Bearer secret"})
        assert refused is not None and refused[0] == 400


class TestFrames:
    def test_a_frame_comes_back_as_it_was(self):
        frame = unpack(pack({"step": 3, "words": ["ä"]}, [b"abc", b"", memoryview(b"de")]))
        assert frame.header == {"step": 3, "words": ["ä"]}
        assert [bytes(blob) for blob in frame.blobs] == [b"abc", b"", b"de"]

    @pytest.mark.parametrize("cut", [1, 9, 40])
    def test_a_cut_frame_is_refused(self, cut):
        whole = pack({"step": 3}, [b"abcdefgh"])
        with pytest.raises(ValueError):
            unpack(whole[:-cut] if cut < len(whole) else b"")


def test_a_wait_says_what_it_waits_for_and_which_key_limits_it():
    waiting = NamedWait("batch 5 from rollout/0", 0.0, "rollout.request_timeout")
    with pytest.raises(TimedOut, match="waited 0 s for batch 5 from rollout/0; the limit is 0 s"):
        while True:
            waiting.check()


def test_only_the_end_of_a_long_file_is_looked_at_for_its_last_whole_line(tmp_path):
    path = tmp_path / "lines"
    for content, length in ((b"", 0), (b"half", 0), (b"a\n", 2), (b"a\nbc", 2), (b"a\n" + b"b" * 3 * CHUNK_BYTES, 2)):
        path.write_bytes(content)
        assert complete_lines_end(path) == length


def test_a_process_of_a_run_may_hold_as_many_connections_as_the_machine_lets_it():
    code = (
        "import resource as r; from areal_like.process.entrypoint import raise_open_files_limit; "
        "hard = r.getrlimit(7)[1]; r.setrlimit(7, (64, hard)); raise_open_files_limit(); "
        "print(r.getrlimit(7)[0] > 64, r.getrlimit(7)[1] == hard)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_every_stream_has_a_seed_of_its_own():
    seeds = {derive_seed(seed, *names) for seed in (1, 2) for names in (("data", 0), ("data", 1), ("sampling", 1))}
    assert len(seeds) == 6
    assert derive_seed(1, "data", 0) == derive_seed(1, "data", 0) < 1 << 63


class TestCalls:
    """One server, both kinds of callers."""

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
                async with HttpClient(TRAINER, secret) as caller:
                    await check(caller, served.address)
            finally:
                await served.close()

        asyncio.run(main())

    def test_json_and_frames_arrive(self):
        async def check(caller, address):
            assert await caller.json("POST", address, "/double", {"x": 4}) == {"x": 8}
            frame = await caller.frame("POST", address, "/echo", b"bytes")
            assert (frame.header, bytes(frame.blobs[0])) == ({"n": 1}, b"bytes")

        self.run(check)

    def test_a_refusal_has_its_message_and_an_error_of_the_server_too(self):
        async def check(caller, address):
            with pytest.raises(HttpError, match="x: must not be negative") as refused:
                await caller.json("POST", address, "/double", {"x": -1})
            assert refused.value.status == 409
            with pytest.raises(HttpError, match="RuntimeError: broken"):
                await caller.json("GET", address, "/fault")
            with pytest.raises(HttpError, match="the body is not JSON"):
                await caller.json("POST", address, "/double", b"{")
            with pytest.raises(HttpError) as refused:
                await caller.json("GET", address, "/nowhere")
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

    def test_a_token_that_the_server_does_not_know_is_not_sent(self):
        async def check(caller, address):
            with pytest.raises(Unreachable, match="does not prove that it knows the secret"):
                await caller.json("POST", address, "/double", {"x": 1})

        self.run(check, secret="guessed")

    def test_nobody_there_is_said_with_the_address(self):
        async def check(caller, address):
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
                await caller.json("GET", "127.0.0.1:9", "/double")

        self.run(check)

    def test_the_blocking_caller_does_the_same(self):
        async def check(_, address):
            def calls():
                caller = BlockingHttpClient(TRAINER, "secret")
                try:
                    assert caller.json("POST", address, "/double", {"x": 4}) == {"x": 8}
                    assert bytes(caller.frame("POST", address, "/echo", b"b").blobs[0]) == b"b"
                    with pytest.raises(HttpError, match="x: must not be negative"):
                        caller.json("POST", address, "/double", {"x": -1})
                    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
                        caller.json("GET", "127.0.0.1:9", "/double")
                finally:
                    caller.close()

            await asyncio.to_thread(calls)

        self.run(check)

    def test_an_outsider_without_headers_is_refused(self):
        async def check(_, address):
            async with aiohttp.ClientSession() as session, session.post(f"http://{address}/double") as response:
                assert response.status == 401

        self.run(check)


class TestBody:
    """A process ends with an exit code and a failure note."""

    def run(self, folder: Path, text: str) -> tuple[int, str, dict[str, object] | None]:
        from areal_like.config.load import load

        loaded = load("grpo.yaml", [f"cluster.fileroot={folder}"])
        (folder / "config.yaml").write_text(yaml.safe_dump(loaded.values))
        facts = {"experiment": "grpo", "run_id": "abc", "folder": str(folder), "cwd": str(folder)}
        (folder / "run.json").write_text(json.dumps(facts))
        (folder / "main.py").write_text(
            "from areal_like.process.entrypoint import run_process\n"
            + textwrap.dedent(text)
            + "\nraise SystemExit(run_process(main))\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "AREAL_LIKE_PROCESS": "episodes/1"}
        command = [sys.executable, str(folder / "main.py"), "--run-dir", str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        note = folder / "logs" / "episodes-1.failure.json"
        return done.returncode, done.stderr, json.loads(note.read_text()) if note.exists() else None

    def test_it_reads_the_run_and_ends_with_what_main_returns(self, tmp_path):
        code, err, note = self.run(
            tmp_path,
            """
            import sys
            def main(run, me):
                assert run.config.gconfig.n_samples == 8 and not run.is_synchronous
                assert (me.name, me.attempt) == ("episodes/1", 1)
                assert not {"torch", "hydra"} & set(sys.modules)
                return 75
            """,
        )
        assert (code, err, note) == (75, "", None)

    def test_a_failure_has_a_message_and_no_traceback(self, tmp_path):
        code, err, note = self.run(
            tmp_path,
            """
            from areal_like.process.errors import Failure
            def main(run, me):
                raise Failure("reward.name: raised 64 times in a row")
            """,
        )
        assert code == 1 and note is not None and "Traceback" not in err
        assert note["message"] == "reward.name: raised 64 times in a row"

    def test_a_bad_configuration_found_late_is_exit_code_2(self, tmp_path):
        code, err, note = self.run(
            tmp_path,
            """
            from areal_like.config.problems import ConfigError, Problem
            def main(run, me):
                raise ConfigError([Problem("task.name", "my.py cannot be imported")])
            """,
        )
        assert code == 2 and note is not None and "Traceback" not in err
        assert note == {"time": note["time"], "message": "task.name: my.py cannot be imported", "kind": "config"}

    def test_an_unexpected_error_leaves_its_traceback_in_the_log(self, tmp_path):
        code, err, note = self.run(tmp_path, "def main(run, me):\n    return 1 // 0")
        assert code == 1 and note is not None and "Traceback" in err
        assert note["message"] == "ZeroDivisionError: integer division or modulo by zero"
