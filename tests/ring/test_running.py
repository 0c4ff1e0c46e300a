"""A live run refuses calls without its token, old attempts and a second run of its name."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import pytest

from areal_like.process.http import error_message
from areal_like.process.identity import Identity, call_headers
from areal_like.rollout.controller.routes import Routes
from tests.ring.start import SHORT, Running, left_behind, listening_ports, run, running

pytestmark = pytest.mark.xdist_group("ring-2")

WORDS = (*SHORT, "total_train_steps=1000", "evaluator.freq_steps=null")
COMMANDS = (
    *("update_weights", "stage_weights", "commit_weights", "load_adapter", "unload_adapter"),
    *("pause", "resume", "abort"),
)
ROUTES = {
    "rollout/0": [(route.method, route.path) for route in Routes(cast(Any, None)).table()],
    "server/0": [
        ("POST", "/generate"),
        ("GET", "/control/fingerprint"),
        ("GET", "/control/statistics"),
        *(("POST", f"/control/{command}") for command in COMMANDS),
    ],
}
CALLERS = {"rollout/0": Identity("trainer", 0), "server/0": Identity("rollout", 0)}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("running"), *WORDS) as started:
        started.wait_for_step(3)
        yield started


def refusals(ring: Running, secret: str, attempt: int) -> dict[int, list[str]]:
    """What each control route of the run says to a call, by status; 200 where one answers."""
    found: dict[int, list[str]] = {}
    entries = ring.entries()
    for name, routes in ROUTES.items():
        me = CALLERS[name]
        headers = {**call_headers(Identity(me.role, me.index, attempt), secret), "Content-Type": "application/json"}
        with closing(HTTPConnection(entries[name].address, timeout=60)) as connection:
            for method, path in routes:
                connection.request(method, path, b"{}", headers)
                response = connection.getresponse()
                content = response.read()
                found.setdefault(response.status, []).append(f"{path}: {error_message(content)}")
    return found


def test_every_control_route_needs_the_token_of_the_run(ring: Running) -> None:
    for guess in ("", "guessed", ring.secret[:-1]):
        messages = refusals(ring, guess, attempt=1)
        assert set(messages) == {401}, messages
        assert len(messages[401]) == sum(map(len, ROUTES.values())) == 24
    assert all(ring.entries()[name].address.startswith("127.0.0.1:") for name in ROUTES)


def test_the_token_is_in_no_file_and_no_command_line(ring: Running) -> None:
    secret = ring.secret
    assert len(secret) >= 32
    assert all(secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ring.pids())
    assert secret not in ring.text()
    for folder, _, names in os.walk(ring.directory):  # passes over what the run removes meanwhile
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                assert secret.encode() not in path.read_bytes(), path


def test_a_second_run_of_the_same_name_is_refused_with_the_owner(ring: Running) -> None:
    second = run(ring.root, *WORDS)
    assert second.code == 2, second.text
    assert f"is already running (pid {ring.process.pid} on host " in second.err and "Traceback" not in second.err, (
        second.text
    )
    assert ring.process.poll() is None


def test_a_process_of_an_older_attempt_is_refused_and_the_run_continues(ring: Running) -> None:
    ring.kill("trainer")
    ring.wait_for_step(1, attempt=2)
    messages = refusals(ring, ring.secret, attempt=1)
    assert set(messages) == {409}, messages
    assert all("is of attempt 1, and the run is at attempt 2" in message for message in messages[409])
    ring.wait_for_step(max(ring.steps()) + 2, attempt=2)


def test_without_its_guardian_it_leaves_no_process_port_or_memory(ring: Running) -> None:
    ports, entries = listening_ports(ring.pids()), ring.entries()
    assert ports >= {int(entries[name].address.rpartition(":")[2]) for name in ROUTES}
    assert ring.pids("server") and ring.pids("trainer")
    directory = ring.directory
    ring.process.kill()
    ring.process.wait(120)
    assert left_behind(directory, ports) == []
