"""A workflow that blocks the event loop of its worker is named with its place, and the worker ends."""

import asyncio
import json
import signal

import pytest

from areal_like.discovery import announce, open_name_store
from areal_like.process.identity import Identity
from areal_like.process.run import open_run
from areal_like.rollout.episodes.blocked_loop import main_stack, place_in
from tests.rollout.episodes.test_main import start
from tests.support.ring_parts import lease, open_controller, open_server, write_run

BLOCKS = """
import re, time

class Sleeps:
    async def run(self, episode, row):
        self.wait()

    def wait(self):
        time.sleep(3600)

class Searches:
    async def run(self, episode, row):
        re.match("(a+)+$", "a" * 64 + "b")
"""


@pytest.mark.parametrize(
    ("name", "line", "function"), [("Sleeps", "time.sleep(3600)", "wait"), ("Searches", "re.match(", "run")]
)
def test_a_workflow_that_blocks_ends_its_worker_with_its_place(tmp_path, name, line, function):
    (tmp_path / "mine.py").write_text(BLOCKS)
    directory = write_run(tmp_path, workflow__name=f"mine.py:{name}", workflow__block_timeout_s=2.0)
    run = open_run(directory)

    async def main():
        async with open_server() as server, open_controller([lease(0, server.address)]) as controller:
            process = start(directory)
            with open_name_store(run, Identity("rollout", 0)) as names:
                announce(names, Identity("rollout", 0), controller.address)
                _, log = await asyncio.to_thread(process.communicate, timeout=60)
            return process.returncode, log

    code, log = asyncio.run(main())
    assert code == -signal.SIGKILL
    at = next(at for at, text in enumerate(BLOCKS.splitlines(), 1) if line in text)
    what = (
        f"mine.py:{name} blocked the event loop of episodes/0 for 2 s, at {tmp_path}/mine.py line {at}, in {function}"
    )
    assert f"{what}:\n  File " in log
    note = json.loads((directory / "logs" / "episodes-0.failure.json").read_text())
    remedy = "await what takes long, or call it in asyncio.to_thread"
    assert (note["kind"], note["message"]) == ("blocked", f"workflow.block_timeout_s: {what}; {remedy}")


def test_the_place_is_the_innermost_one_of_the_users_code():
    here = '  File "/lib/python3.11/site-packages/a.py", line 3 in wait\n  File "/home/me/mine.py", line 7 in run\n'
    stacks = f'Thread 0x1 (most recent call first):\n  File "/b.py", line 1 in x\n\nCurrent thread 0x2:\n{here}\n'
    assert main_stack(stacks) == here.rstrip()
    assert place_in(here) == ", at /home/me/mine.py line 7, in run"
    assert place_in(here.splitlines()[0]) == ", at /lib/python3.11/site-packages/a.py line 3, in wait"
    assert place_in("") == ""
