"""An episodes worker as a process: its imports, its errors for the user's code, and its end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.discovery import announce, open_name_store
from areal_like.models import model_folder
from areal_like.process.identity import Identity
from areal_like.process.run import open_run
from areal_like.rollout.episodes.main import max_in_flight
from tests.support.commands import REPOSITORY
from tests.support.ring_parts import SECRET, lease, open_controller, open_server, write_run

TASK = "class Task:\n    def rows(self, split):\n        return [{'prompt': '1'}]\n"
WORKFLOW = "class Twice:\n    needs_reward = True\n    async def run(self, episode, row):\n        return None\n"
WITHOUT_REWARD = {
    **{"task__name": "mine.py:Task", "reward__name": None, "valid_dataset": None},
    **{"train_dataset__batch_size": 1, "train_dataset__path": ""},
}
HEAVY = ("torch", "transformers", "hydra", "omegaconf", "safetensors.torch")


def environment(directory):
    ours = {"PYTHONPATH": str(REPOSITORY), "AREAL_LIKE_TOKEN": SECRET, "AREAL_LIKE_PROCESS": "episodes/0"}
    return {**os.environ, **ours, "AREAL_LIKE_RUN_DIR": str(directory)}


def start(directory, **more):
    command = [sys.executable, "-m", "areal_like.rollout.episodes", "--run-dir", str(directory), "--index", "0"]
    return subprocess.Popen(command, env=environment(directory), stderr=subprocess.PIPE, text=True, **more)


def test_nothing_heavy_is_imported_by_a_worker_or_its_child():
    program = (
        "import sys, areal_like.rollout.episodes.main, areal_like.rollout.episodes.rewards.processes.reward_template;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    child = (
        "import sys, areal_like.rollout.episodes.rewards.processes.reward_template;"
        "print([name for name in ('aiohttp', 'numpy', 'tokenizers', 'yaml') if name in sys.modules])"
    )
    for code, expected in [(program, "[]"), (child, "[]")]:
        done = subprocess.run([sys.executable, "-c", code], env=environment(""), capture_output=True, text=True)
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        (
            "import nothing_of_that_name\nclass Task: ...\n",
            {"task__name": "mine.py:Task"},
            "task.name: mine.py cannot be imported: MINE line 1: ModuleNotFoundError: No module named 'nothing_of",
        ),
        (
            "from functools import partial\nreward = partial(lambda prompt, completion, known: 1.0)\n",
            {"reward__name": "mine.py:reward", "reward__args": {"unknown": 1}},
            "reward.args: mine.py:reward takes no argument 'unknown'; besides prompt and answer, it takes known",
        ),
        (
            TASK,
            WITHOUT_REWARD,
            "reward.name: is null, and task mine.py:Task has none: name a reward (docs/rewards.md)",
        ),
        (
            f"{TASK}{WORKFLOW}",
            {**WITHOUT_REWARD, "workflow__name": "mine.py:Twice"},
            "reward.name: is null, and task mine.py:Task has none: name a reward (docs/rewards.md)",
        ),
    ],
    ids=["task", "reward", "no reward", "no reward for a workflow"],
)
def test_an_error_in_user_code_is_one_message_before_any_work(tmp_path, source, changes, expected):
    (tmp_path / "mine.py").write_text(source)
    if "task__name" in changes:
        changes = {"train_dataset__path": changes["task__name"], **changes}
    directory = write_run(tmp_path, **changes)
    process = start(directory)
    _, errors = process.communicate(timeout=60)
    failure = json.loads((directory / "logs" / "episodes-0.failure.json").read_text())
    assert process.returncode == 2, errors
    assert failure["kind"] == "config"
    assert failure["message"].startswith(expected.replace("MINE", str(tmp_path / "mine.py"))), failure["message"]
    assert "Traceback" not in failure["message"] and "\n" not in failure["message"]
    assert ("Traceback" in errors) is source.startswith("import no"), "what user code raised is in the log alone"


def test_a_reward_of_a_worker_does_not_see_the_key_of_attached_servers(tmp_path, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "secret")
    (tmp_path / "mine.py").write_text("import os\nraise ValueError(f\"sees it: {'THEIR_KEY' in os.environ}\")\n")
    attached: dict[str, Any] = {"rollout__server_addresses": ["h:1"], "rollout__api_key_var": "THEIR_KEY"}
    directory = write_run(tmp_path, reward__name="mine.py:reward", **attached)
    process = start(directory)
    _, errors = process.communicate(timeout=60)
    failure = json.loads((directory / "logs" / "episodes-0.failure.json").read_text())
    assert failure["message"].endswith("ValueError: sees it: False"), errors


def test_a_worker_registers_with_its_controller_and_works_until_the_end(tmp_path):
    directory = write_run(tmp_path)
    run = open_run(directory)

    async def main():
        async with open_server() as server, open_controller([lease(n, server.address) for n in range(5)]) as controller:
            process = start(directory)
            with open_name_store(run, Identity("rollout", 0)) as names:
                announce(names, Identity("rollout", 0), controller.address)
                code = await asyncio.to_thread(process.wait, 60)
            process.stderr.close()
            return code, controller

    code, controller = asyncio.run(main())
    assert code == 0
    hello = controller.hello
    assert (hello["worker"], hello["incarnation"]) == ("episodes/0", 1)
    train, valid = hello["datasets"]["train"], hello["datasets"]["valid"]
    assert (train["rows"], valid["rows"], train["digest"] != valid["digest"]) == (8036, 1964, True)
    text = TextTokenizer(model_folder("builtin:tiny-addition")).decode(train["probe_tokens"], skip_special=False)
    assert text.startswith("00+00=000<eos>00+02=002<eos>") and len(train["probe_tokens"]) == 64
    assert sorted(controller.results) == [f"{number}.1" for number in range(5)]
    assert {result["status"] for result in controller.results.values()} == {"done"}
    assert max_in_flight(run.config) in controller.wants


def test_a_stopped_worker_ends_at_once_with_its_child(tmp_path):
    directory = write_run(tmp_path)
    run = open_run(directory)

    async def main():
        server_and_leases = open_server()
        async with server_and_leases as server, open_controller([lease(0, server.address)]) as controller:
            server.gate = asyncio.Event()
            process = start(directory)
            with open_name_store(run, Identity("rollout", 0)) as names:
                announce(names, Identity("rollout", 0), controller.address)
                while not server.requests:
                    await asyncio.sleep(0.01)
            children = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(process.wait, 60)
            process.stderr.close()
            server.gate.set()
            return code, children

    code, children = asyncio.run(main())
    assert code == -signal.SIGTERM
    assert len(children) == 2, "the watch of its event loop, and the keeper of its rewards"
    until = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{child}/exe") for child in children):
        assert time.monotonic() < until
        time.sleep(0.01)


def descendants(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
