"""An engine that does not start, or ends, is reported at once with its own error, and all its processes end."""

import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from areal_like.serving.engines.external.engine_log import decode_line, find_error
from areal_like.serving.engines.external.engine_process import import_folder
from areal_like.serving.engines.vllm.command import MODULE
from tests.support.external_processes import SECRET, environment, external_server, program, write_run

ANSWERS = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_POST = do_GET
    def log_message(self, *arguments): pass
PORT = int(sys.argv[sys.argv.index("--port") + 1])
"""
"""A server without any engine's routes."""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends_within(pid: int, limit_s: float) -> bool:
    ends = time.monotonic() + limit_s
    while is_alive(pid) and time.monotonic() < ends:
        time.sleep(0.02)
    return not is_alive(pid)


def test_an_engine_that_dies_at_its_start_is_reported_at_once_with_its_error(tmp_path: Path) -> None:
    source = """
    print("INFO loading the weights")
    def load(): raise ValueError("the file /models/x is damaged")
    try:
        load()
    except ValueError:
        import traceback; traceback.print_exc()
        print("shutting down, goodbye")
        raise SystemExit(3)
    """
    with external_server(write_run(tmp_path, "rollout.setup_timeout=300"), *program(textwrap.dedent(source))) as one:
        assert one.code() == 1
        assert one.note["message"] == (
            "the vLLM engine ended with exit code 3: ValueError: the file /models/x is damaged"
        )
        assert "INFO loading the weights" in one.printed and "goodbye" in one.printed


def test_the_environment_that_an_engine_prints_has_no_secret_in_log_and_message(tmp_path: Path) -> None:
    source = "import os; print(dict(os.environ)); raise RuntimeError('refused ' + os.environ['JUDGE_URL'])"
    planted = {"JUDGE_URL": "planted-in-a-file", "AREAL_LIKE_SECRET_NAMES": "JUDGE_URL", "SOME_KEY": "planted-by-name"}
    with external_server(write_run(tmp_path), *program(source), **planted) as one:
        assert one.code() == 1
        assert one.note["message"].endswith("RuntimeError: refused <secret>")
        assert "'JUDGE_URL': '<secret>'" in one.printed
        assert not [secret for secret in (*list(planted.values())[::2], SECRET) if secret in one.printed]


def test_a_killed_engine_is_reported_by_the_signal_and_not_by_its_last_output(tmp_path: Path) -> None:
    source = "import os, signal; print('an error long ago'); os.kill(os.getpid(), signal.SIGKILL)"
    with external_server(write_run(tmp_path), *program(source)) as one:
        assert one.code() == 1
        assert one.note["message"].startswith(
            "the vLLM engine was killed by signal 9 (SIGKILL), by another process or "
        )
        assert one.note["kind"] == "killed"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("RuntimeError: Engine core initialization failed. Failed core proc(s): {'a_0': -9}", "killed"),
        ("RuntimeError: Engine core initialization failed. Failed core proc(s): {'a_0': 1}", "failed"),
        ("Scheduler or DataParallelController 812 terminated with -9", "killed"),
        ("Scheduler or DataParallelController 812 terminated with 1", "failed"),
    ],
)
def test_an_engine_that_ends_since_a_process_of_its_own_was_killed_was_killed(
    tmp_path: Path, line: str, kind: str
) -> None:
    with external_server(write_run(tmp_path), *program(f"print({line!r}); raise SystemExit(1)")) as one:
        assert one.code() == 1
        assert one.note["kind"] == kind


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with external_server(write_run(tmp_path), "--", "/nowhere/python", "--port", "<port>") as one:
        assert one.code() == 1
        assert one.note["message"] == "/nowhere/python cannot be started: No such file or directory"


def test_a_silent_engine_is_ended_after_the_named_limit_with_all_its_processes(tmp_path: Path) -> None:
    source = (
        "import os, time; print('pid', os.getpid(), flush=True); print('still loading', flush=True); time.sleep(600)"
    )
    with external_server(write_run(tmp_path, "rollout.setup_timeout=2"), *program(source)) as one:
        assert one.code() == 1
        assert one.note["kind"] == "timeout"
        message = one.note["message"]
        assert message.startswith("rollout.setup_timeout: waited 2 s for vLLM to generate its first token")
        assert message.endswith("Its last output: still loading")
        assert ends_within(int(one.printed.split("pid ")[1].split()[0]), 1)


TAKEN = """
import socket, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
print("port", port)
first = socket.create_server(("127.0.0.1", port))
try:
    socket.create_server(("127.0.0.1", port))
except OSError:
    import traceback; traceback.print_exc(); sys.exit(1)
"""


def test_another_port_is_tried_a_few_times_if_one_is_taken(tmp_path: Path) -> None:
    with external_server(write_run(tmp_path), *program(TAKEN)) as one:
        assert one.code() == 1
        ports = {line for line in one.printed.splitlines() if line.startswith("port")}
        assert len(ports) == 4 and "is started again on another port (start 2 of 4)" in one.printed
        message = one.note["message"]
        assert message == "vLLM: each of 4 free ports was taken by another process before the engine used it"


@pytest.mark.parametrize(
    "headers",
    [
        "{}",
        "{'X-Areal-Run': 'another server/0 1.1'}",
        "{'X-Areal-Run': 'run1 server/0 1.1', 'X-Areal-Proof': '0' * 64}",
    ],
    ids=["foreign", "another run", "a liar"],
)
def test_another_server_at_the_port_is_not_taken_for_the_engine(tmp_path: Path, headers: str) -> None:
    server = ANSWERS + f"HEADERS = {headers}\nHTTPServer(('127.0.0.1', PORT), Handler).serve_forever()\n"
    with external_server(write_run(tmp_path), *program(server)) as one:
        assert one.code() == 1
        assert "each of 4 free ports was taken by another process" in one.note["message"]


def test_a_port_in_the_command_is_not_replaced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mine:
        words = [*program(TAKEN)[:-1], str(mine.getsockname()[1])]
        with external_server(write_run(tmp_path), *words) as one:
            assert one.code() == 1
            assert f"port {mine.getsockname()[1]} of its command is taken" in one.note["message"]


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
hidden = subprocess.run(["sh", "-c", "setsid env -i sleep 600 > /dev/null & echo $!"], stdout=subprocess.PIPE)
print("pids", os.getpid(), below.pid, int(hidden.stdout), flush=True)
time.sleep(600)
"""
"""Refuses to end, and starts processes in other sessions; the last one has no variables, and its parent has ended."""


@pytest.mark.parametrize("how", ["server ended", "server killed", "engine killed"])
def test_an_engine_ends_with_all_its_processes_whichever_ends_first(tmp_path: Path, how: str) -> None:
    with external_server(write_run(tmp_path), *program(STUBBORN)) as one:
        one.until_printed("pids")
        pids = [int(word) for word in one.printed.split("pids ")[1].split()[:3]]
        assert all(map(is_alive, pids))
        if how == "engine killed":
            os.kill(pids[0], signal.SIGKILL)
            assert one.code(60) == 1
            assert one.note["message"].startswith("the vLLM engine was killed by signal 9 (SIGKILL), by another ")
        elif how == "server ended":
            one.process.terminate()
            assert one.code(60) == 0
        else:
            one.process.kill()
        assert all(ends_within(pid, 60) for pid in pids)


def test_an_engine_gets_time_to_end_by_itself(tmp_path: Path) -> None:
    source = """
    import signal, sys, time
    def end(*arguments):
        print("closing my files", flush=True); sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("up", flush=True)
    time.sleep(600)
    """
    with external_server(write_run(tmp_path), *program(textwrap.dedent(source))) as one:
        one.until_printed("up\n")
        one.process.terminate()
        assert one.code(10) == 0 and "closing my files" in one.printed


def test_an_engine_imports_this_package_alone_and_gets_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCDCTL_PASSWORD", "secret")
    source = """
    import os, sys, areal_like
    from areal_like.process.identity import start_id, take_token, token
    path = os.environ["PYTHONPATH"]
    take_token()
    print("sees", os.listdir(path), start_id(), token() == %r)
    print("password", "ETCDCTL_PASSWORD" in os.environ)
    raise SystemExit(1)
    """
    directory = write_run(tmp_path)
    with external_server(directory, *program(textwrap.dedent(source % SECRET))) as one:
        assert one.code() == 1
        assert "sees ['areal_like'] run1 server/0 1.1 True" in one.printed and "password False" in one.printed
    assert import_folder(directory) == import_folder(directory)


SEARCHES = """
import os, time
from contextlib import suppress
from pathlib import Path
from areal_like.process.identity import take_token

def shows(pid, secret):
    parts = [Path(f"/proc/{pid}/environ").read_bytes()]
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(entry).startswith("/memfd:"):
                parts.append(entry.read_bytes())
    return secret in b"".join(parts)

print("before", shows(os.getpid(), SECRET))
take_token()
print("after", shows(os.getpid(), SECRET), flush=True)
while shows(os.getppid(), SECRET):  # the keeper may not have closed it yet
    time.sleep(0.01)
raise SystemExit(1)
"""


def test_neither_an_engine_that_has_taken_the_token_nor_its_keeper_shows_it(tmp_path: Path) -> None:
    with external_server(write_run(tmp_path), *program(f"SECRET = {SECRET.encode()!r}\n{SEARCHES}")) as one:
        assert one.code() == 1
        assert "before True" in one.printed and "after False" in one.printed


STANDS_IN = """
import asyncio, os, sys
from areal_like.serving.token_guard import RequireToken

async def answer(scope, receive, send):
    print("answered", scope["path"], flush=True)

async def main():
    sent = []
    async def send(message):
        sent.append(message.get("status"))
    guarded = RequireToken(answer)
    for secret in (SECRET, b"Bearer another"):
        scope = {"type": "http", "method": "GET", "path": "/models", "headers": [(b"authorization", secret)]}
        await guarded(scope, None, send)
    print("refused", sent, "named", __name__, sys.argv[1:2], "in environment", "AREAL_LIKE_TOKEN" in os.environ)

asyncio.run(main())
raise SystemExit(1)
"""
"""In place of vLLM's server."""


def test_the_guard_in_vllm_knows_the_token_that_was_taken_when_it_started(tmp_path: Path) -> None:
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    server.write_text(f"SECRET = {f'Bearer {SECRET}'.encode()!r}\n{STANDS_IN}")
    with external_server(write_run(tmp_path), "--", sys.executable, "-m", MODULE, "--port", "<port>") as one:
        assert one.code() == 1
        assert "answered /models" in one.printed
        assert "refused [401, None] named __main__ ['--port'] in environment False" in one.printed


def test_the_server_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "hydra", "omegaconf", "safetensors")
    source = f"import sys, areal_like.serving.main;print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], env=environment(Path()), capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


VLLM_DIES = """\
(EngineCore pid=71) INFO 11-22 01:44:26 [core.py:98] Initializing a V1 LLM engine
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:900] EngineCore failed to start.
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:900] Traceback (most recent call last):
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:900]   File "core.py", line 1, in __init__
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:900] ValueError: No available memory for the cache blocks.
(APIServer pid=70) Traceback (most recent call last):
(APIServer pid=70)   File "api_server.py", line 2, in <module>
(APIServer pid=70) RuntimeError: Engine core initialization failed. Failed core proc(s): {}
"""
VLLM_WORKER_DIES = """\
(EngineCore pid=71) ERROR 11-22 01:44:27 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly \
(exit code: -4), shutting down executor.
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:1512] Traceback (most recent call last):\r
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:1512]   File "core.py", line 1, in run\r
(EngineCore pid=71) ERROR 11-22 01:44:27 [core.py:1512] RuntimeError: cancelled
(APIServer pid=70) ERROR 11-22 01:44:27 [core.py:900] Traceback (most recent call last):\r
(APIServer pid=70) ERROR 11-22 01:44:27 [core.py:900] EngineDeadError: See stack trace (above) for the root cause.
"""
CHAIN = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'config'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in g
OSError: Can't load the configuration of '/nowhere'
[W socket.cpp:1] cleaning up
"""
SEVERAL_LINES = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, max_model_len (4096) is greater than 512 [type=value_error]
    For further information visit https://errors.pydantic.dev
"""
TEMPLATE = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
    raise TemplateNotFound("chat.jinja")
          ^^^^^^^^^^^^^^^^
INFO:     Shutting down
jinja2.exceptions.TemplateNotFound: chat.jinja
INFO:     Finished server process
"""
SGLANG_DIES = """\
[2026-11-22 01:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 1, in run
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.
[2026-11-22 01:00:01] Rank 0 scheduler is dead. Please check if there are relevant logs.
Traceback (most recent call last):
  File "launch_server.py", line 1, in <module>
EOFError
"""


@pytest.mark.parametrize(
    ("printed", "word"),
    [
        (VLLM_DIES, "ValueError: No available memory for the cache blocks."),
        (VLLM_DIES.replace("\n", "\r\n"), "ValueError: No available memory for the cache blocks."),
        (VLLM_WORKER_DIES, "Worker proc VllmWorker-0 died unexpectedly (exit code: -4), shutting down executor."),
        (CHAIN, "OSError: Can't load the configuration of '/nowhere'"),
        (
            SEVERAL_LINES,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, "
            "max_model_len (4096) is greater than 512 [type=value_error]",
        ),
        (SGLANG_DIES, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
        (TEMPLATE, "jinja2.exceptions.TemplateNotFound: chat.jinja"),
        ("usage: api_server [-h]\nserver: error: unrecognized arguments: --flag\n", "server: error: unrecognized"),
        ("hello\n\n", "hello"),
        ("loading 1%\rloading 2%\r\n", "loading 2%"),
        ("", "it printed nothing"),
    ],
    ids=[
        "vllm",
        "carriage returns",
        "a worker of it",
        "chain",
        "several lines",
        "sglang",
        "another name",
        "arguments",
        "no error",
        "a progress bar",
        "nothing",
    ],
)
def test_the_error_is_that_of_the_process_that_failed_first(printed: str, word: str) -> None:
    assert find_error([decode_line(line) for line in io.BytesIO(printed.encode())]).startswith(word)
