"""An engine that does not come up, or goes down, is told of at once and in its own words; nothing is left of it."""

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

from areal_like.serving.external.engine_log import decode_line, find_error
from areal_like.serving.external.engine_process import import_folder
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
    def log_message(self, *said): pass
PORT = int(sys.argv[sys.argv.index("--port") + 1])
"""
"""A server that knows no route of any engine."""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def dead_within(pid: int, limit_s: float) -> bool:
    ends = time.monotonic() + limit_s
    while is_alive(pid) and time.monotonic() < ends:
        time.sleep(0.02)
    return not is_alive(pid)


def test_an_engine_that_dies_at_its_start_is_reported_at_once_by_its_own_error(tmp_path: Path) -> None:
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
            "the vllm engine ended with exit code 3: ValueError: the file /models/x is damaged"
        )
        assert "INFO loading the weights" in one.said and "goodbye" in one.said


def test_an_engine_that_is_killed_is_reported_by_the_signal_and_not_by_what_it_said_before(tmp_path: Path) -> None:
    source = "import os, signal; print('an error long ago'); os.kill(os.getpid(), signal.SIGKILL)"
    with external_server(write_run(tmp_path), *program(source)) as one:
        assert one.code() == 1
        assert one.note["message"].startswith("the vllm engine was killed by signal 9 (SIGKILL), by somebody else or ")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with external_server(write_run(tmp_path), "--", "/nowhere/python", "--port", "<port>") as one:
        assert one.code() == 1
        assert one.note["message"] == "/nowhere/python cannot be started: No such file or directory"


def test_an_engine_that_never_answers_is_given_up_after_the_named_limit_and_leaves_nothing(tmp_path: Path) -> None:
    source = (
        "import os, time; print('pid', os.getpid(), flush=True); print('still loading', flush=True); time.sleep(600)"
    )
    with external_server(write_run(tmp_path, "rollout.setup_timeout=2"), *program(source)) as one:
        assert one.code() == 1
        assert one.note["kind"] == "timeout"
        said = one.note["message"]
        assert said.startswith("rollout.setup_timeout: waited 2 s for vllm to generate its first token")
        assert said.endswith("The last that it said: still loading")
        assert dead_within(int(one.said.split("pid ")[1].split()[0]), 1)


TAKEN = """
import socket, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
print("asked for", port)
first = socket.create_server(("127.0.0.1", port))
try:
    socket.create_server(("127.0.0.1", port))
except OSError:
    import traceback; traceback.print_exc(); sys.exit(1)
"""


def test_another_port_is_tried_a_few_times_where_one_is_taken(tmp_path: Path) -> None:
    with external_server(write_run(tmp_path), *program(TAKEN)) as one:
        assert one.code() == 1
        ports = {line for line in one.said.splitlines() if line.startswith("asked for")}
        assert len(ports) == 4 and "is started again on another port (start 2 of 4)" in one.said
        assert one.note["message"] == "vllm: somebody else took each of 4 ports that were free a moment before"


@pytest.mark.parametrize(
    "headers",
    [
        "{}",
        "{'X-Areal-Run': 'another server/0 1.1'}",
        "{'X-Areal-Run': 'run1 server/0 1.1', 'X-Areal-Proof': '0' * 64}",
    ],
    ids=["foreign", "another run", "a liar"],
)
def test_a_server_that_is_not_the_one_started_here_is_not_taken_for_it(tmp_path: Path, headers: str) -> None:
    server = ANSWERS + f"HEADERS = {headers}\nHTTPServer(('127.0.0.1', PORT), Handler).serve_forever()\n"
    with external_server(write_run(tmp_path), *program(server)) as one:
        assert one.code() == 1
        assert "somebody else took each of 4 ports" in one.note["message"]


def test_a_port_that_the_command_names_is_not_exchanged_for_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mine:
        words = [*program(TAKEN)[:-1], str(mine.getsockname()[1])]
        with external_server(write_run(tmp_path), *words) as one:
            assert one.code() == 1
            assert f"port {mine.getsockname()[1]}, which it was told to take, is taken" in one.note["message"]


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("pids", os.getpid(), below.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_that_will_not_end_is_killed_with_all_that_it_started(tmp_path: Path, how: signal.Signals) -> None:
    with external_server(write_run(tmp_path), *program(STUBBORN)) as one:
        one.until_said("pids")
        engine, below = (int(word) for word in one.said.split("pids ")[1].split()[:2])
        one.process.send_signal(how)
        if how == signal.SIGTERM:
            assert one.code(10) == 0
            assert dead_within(engine, 1) and dead_within(below, 1)
        else:
            assert dead_within(engine, 1), "it dies with its parent"
            os.kill(below, signal.SIGKILL)  # an orphan of another session: the launcher, its subreaper, ends that


def test_an_engine_that_is_told_to_end_may_end_by_itself(tmp_path: Path) -> None:
    source = """
    import signal, sys, time
    def end(*said):
        print("closing my files", flush=True); sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("up", flush=True)
    time.sleep(600)
    """
    with external_server(write_run(tmp_path), *program(textwrap.dedent(source))) as one:
        one.until_said("up\n")
        one.process.terminate()
        assert one.code(10) == 0 and "closing my files" in one.said


def test_an_engine_sees_our_package_and_none_of_our_libraries(tmp_path: Path) -> None:
    source = """
    import os, sys, areal_like
    from areal_like.process.identity import start_id
    path = os.environ["PYTHONPATH"]
    print("found", os.listdir(path), start_id(), os.environ["AREAL_LIKE_TOKEN"] == %r)
    raise SystemExit(1)
    """
    directory = write_run(tmp_path)
    with external_server(directory, *program(textwrap.dedent(source % SECRET))) as one:
        assert one.code() == 1
        assert "found ['areal_like'] run1 server/0 1.1 True" in one.said
    assert import_folder(directory) == import_folder(directory)


def test_nothing_heavy_is_imported_by_an_attendant() -> None:
    heavy = ("torch", "transformers", "hydra", "omegaconf", "safetensors")
    source = f"import sys, areal_like.serving.external.main;print([name for name in {heavy!r} if name in sys.modules])"
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
(APIServer pid=70) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
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
        ("", "it said nothing"),
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
def test_the_telling_words_are_those_of_the_process_that_failed_first(printed: str, word: str) -> None:
    assert find_error([decode_line(line) for line in io.BytesIO(printed.encode())]).startswith(word)
