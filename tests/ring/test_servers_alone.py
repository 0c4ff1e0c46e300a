"""`serve` starts only servers, and a separate run trains with them."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ring.start import SHORT, command, environment, run, running, wait_until_gone

pytestmark = pytest.mark.xdist_group("servers_alone")

KEY = "known-to-those-who-may-train"
VARIABLE = "OWN_SERVERS_KEY"
NAMED = f"rollout.api_key_var={VARIABLE}"
READY_S = 120


class RunningServers:
    def __init__(self, root: Path, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.root, self.process, self.output = root, process, output

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def addresses(self, announcement: int = 1, limit_s: float = READY_S) -> list[str]:
        """Once all are ready, for the first time or a later one."""
        until = time.monotonic() + limit_s
        while self.announcements() < announcement:
            assert self.process.poll() is None and time.monotonic() < until, self.text()
            time.sleep(0.1)
        lines = [line for line in self.text().splitlines() if line.startswith("ready: ")]
        return lines[announcement - 1].removeprefix("ready: ").split(", ")

    def announcements(self) -> int:
        return self.text().count("Ctrl-C stops them")

    def pids(self) -> list[int]:
        """Of its servers."""
        found = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [int(path.name) for path in found if is_server_of(path, self.root)]

    def pid(self) -> int:
        """Of the only server."""
        (pid,) = self.pids()
        return pid


@contextmanager
def serving(root: Path, *words: str, config: str | None = "grpo.yaml", **more: str) -> Iterator[RunningServers]:
    root.mkdir(parents=True, exist_ok=True)
    output = root / "serve.output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command("serve", *words, config=config), cwd=root, env=environment(root, **more), stdout=file, stderr=file
        )
    try:
        yield RunningServers(root, process, output)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def ask(address: str, path: str, body: object = None, key: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", content, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


PROMPT = {"model": "builtin:tiny-addition", "prompt": "1+1=", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServers]:
    """Two servers; the last test ends them."""
    root = tmp_path_factory.mktemp("servers")
    with serving(root, "rollout.backend=embedded:d2", "trial_name=t", NAMED, **{VARIABLE: KEY}) as servers:
        yield servers


def test_two_runs_train_with_attached_servers(pair, tmp_path):
    addresses = pair.addresses()
    assert f"rollout.server_addresses=[{','.join(addresses)}]" in pair.text()
    assert f"curl http://{addresses[0]}/v1/completions" in pair.text()
    for address in addresses:
        status, answer = ask(address, "/v1/completions", PROMPT)
        assert status == 200 and answer["choices"]
    for trial in ("one", "two"):  # the second begins again with the first version of its weights
        words = (NAMED, f"rollout.server_addresses=[{','.join(addresses)}]", "evaluator.freq_steps=null")
        ended = run(tmp_path / "runs", *SHORT, *words, "total_train_steps=2", trial=trial, OWN_SERVERS_KEY=KEY)
        assert ended.code == 0, ended.text
        assert ended.summary["steps"] == 2
        assert ended.metric("rollout/samples") == [64, 64]
        assert all(ask(address, "/health")[1]["version"] >= 1 for address in addresses)
    for folder in (pair.root, tmp_path / "runs"):
        assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert pair.process.poll() is None


def test_a_killed_server_is_replaced_and_announced_again(pair):
    before = pair.addresses()
    os.kill(pair.pids()[0], signal.SIGKILL)
    after = pair.addresses(2)
    assert "it is replaced (incarnation 2)" in pair.text()
    assert len({*before} & {*after}) == 1 and len({*after}) == 2
    assert all(ask(address, "/v1/completions", PROMPT)[0] == 200 for address in after)


def test_ctrl_c_ends_servers_alone_and_leaves_nothing(pair):
    first, second = pair.addresses(max(1, pair.announcements()))
    assert first != second
    pids = pair.pids()
    pair.process.send_signal(signal.SIGINT)
    assert pair.process.wait(120) == 0, pair.text()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for address in (first, second):
        with pytest.raises(urllib.error.URLError):
            ask(address, "/health")
    assert not list((pair.root / "runs").glob("*/t/checkpoints/*"))


def is_server_of(path: Path, root: Path) -> bool:
    try:
        words = (path / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended
    return b"areal_like.serving" in words and any(word.startswith(str(root).encode()) for word in words)


def test_servers_without_a_key_answer_and_refuse_control_routes(tmp_path):
    with serving(tmp_path, f"rollout.api_key_var={VARIABLE}") as servers:
        (address,) = servers.addresses()
        assert f"no run can train with them, because {VARIABLE}" in servers.text()
        assert "rollout.server_addresses=" not in servers.text()
        assert ask(address, "/v1/completions", PROMPT)[0] == 200
        for key in (None, "", "guess"):
            assert ask(address, "/control/pause", {}, key)[0] == 401


def test_a_run_whose_attached_server_hangs_ends_by_the_name_of_that_server(tmp_path):
    with serving(tmp_path / "servers", NAMED, **{VARIABLE: KEY}) as servers:
        (address,), pid = servers.addresses(), servers.pid()
        words = (NAMED, f"rollout.server_addresses=[{address}]", "evaluator.freq_steps=null", "total_train_steps=500")
        limits = ("watchdog.notice_s=2", "watchdog.generating_s=5", "rollout.setup_timeout=20")
        with running(tmp_path / "runs", *SHORT, *words, *limits, **{VARIABLE: KEY}) as ring:
            ring.wait_for_step(2)
            os.kill(pid, signal.SIGSTOP)
            try:
                ended = ring.wait(300)
            finally:
                os.kill(pid, signal.SIGCONT)
    assert ended.code == 1, ended.text
    assert address in ended.out and "killed by signal" not in ended.out
    assert wait_until_gone(ended.directory) == {}
