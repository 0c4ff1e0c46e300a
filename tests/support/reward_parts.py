"""Rewards that fail in every known way, and a pool to run them in."""

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from areal_like.rollout.episodes.rewards import RewardError, RewardSpec
from areal_like.rollout.episodes.rewards.sum_pool import pool_kind

ROW = {"prompt": "12+34=", "answer": "046"}
MINE = '''
import asyncio, ctypes, os, signal, subprocess, sys, time

at_import = set(os.environ)

def acts(prompt, completion, answer):
    """Acts as the answer names."""
    if completion == "hang":
        subprocess.Popen(["sleep", "3599.5"])
        time.sleep(3600)
    if completion == "stops":
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(3600)
    if completion == "busy":
        while True: pass
    if completion == "raise":
        raise RuntimeError("no judge today")
    if completion == "half":
        raise ValueError("no tool named \\ud83d")
    if completion == "half down":
        import areal_like
        raise areal_like.InfrastructureError("\\ud83d is down")
    if completion == "half a name":
        return {"\\ud83d": 1.0}
    if completion == "down":
        import areal_like
        raise areal_like.InfrastructureError("the judge is down")
    if completion == "exit":
        sys.exit("enough")
    if completion == "gone":
        os._exit(7)
    if completion == "crash":
        ctypes.string_at(0)
    if completion == "nan":
        return float("nan")
    if completion == "talk":
        print("to the log", flush=True)
        os.write(1, b'{"id": 0, "value": 9}\\n')
        assert sys.stdin.read() == ""
    if completion == "late":
        time.sleep(0.4)
    return {"right": float(completion == answer), "score": 0.5}

def leaves(prompt, completion):
    """Leaves a process that hides: another session, no variables, and a parent that has ended."""
    pid = os.path.join(os.path.dirname(__file__), "pid")
    subprocess.run(["sh", "-c", f"setsid env -i sleep 3600 & echo $! > {pid}"])
    if completion == "hang":
        time.sleep(3600)
    if completion == "gone":
        os._exit(7)
    if completion == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0

began = []

async def awaits(prompt, completion):
    if completion == "together":
        began.append(completion)
        while len(began) < 50:
            await asyncio.sleep(0.01)
    if completion == "gone":
        os._exit(7)
    if completion == "stuck":
        time.sleep(3600)
    if completion == "raise":
        raise RuntimeError("no judge today")
    if completion == "half":
        raise ValueError("no tool named \\ud83d")
    if completion == "own":
        raise TimeoutError("of its own")
    await asyncio.sleep(3600 if completion == "hang" else 0.1)
    return len(completion)

turns = asyncio.Semaphore(1)

async def queued(prompt, completion):
    from areal_like.rollout.episodes.rewards.deadline import turn
    async with turn(turns):
        await asyncio.sleep(0.4)
    return 1.0

def passing(prompt, completion, answer):
    """Fails twice and then recovers; counts in a file, since its process may end."""
    with open(os.path.join(os.path.dirname(__file__), "count"), "a") as file:
        file.write("x")
        if file.tell() < 3:
            raise RuntimeError("too early")
    return 1.0

class Judge:
    def __init__(self, worth):
        self.worth = worth
    def __call__(self, prompt, completion):
        return self.worth

class Task:
    def __init__(self, bonus=0.0):
        self.bonus = bonus
    def rows(self, split):
        return []
    def reward(self, prompt, completion, answer, scale=1.0):
        return scale * float(completion == answer) + self.bonus

def environment(prompt, completion, key_variable=None):
    assert not {"AREAL_LIKE_TOKEN", "ETCDCTL_PASSWORD"} & {*at_import, *os.environ}
    return float("THEIR_KEY" in os.environ)
'''


def reward_spec_in(folder):
    (folder / "mine.py").write_text(MINE)

    def reward_spec(name=None, args=None, task=None, task_args=None):
        return RewardSpec(name and f"mine.py:{name}", args or {}, task, task_args or {}, str(folder), str(folder))

    return reward_spec


@asynccontextmanager
async def open_pool(spec, timeout_s=30.0, retries=0, row=ROW, setup_timeout_s=60, **options):
    pool = pool_kind(spec)(spec, timeout_s, retries, setup_timeout_s, **options)
    try:
        await pool.ready(row)
        yield pool
    finally:
        await pool.close()


async def child_of(pool):
    """The first process of the pool, once it is ready."""
    while not pool._seats.inside or pool._seats.inside[0].pid is None:
        await asyncio.sleep(0.01)
    return pool._seats.inside[0].pid


def is_alive(pid):
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def each(pool, *completions):
    """The reward or error of each answer, requested concurrently."""

    async def one(completion):
        try:
            return (await pool.score(ROW, [completion]))[0].value
        except RewardError as error:
            return str(error)

    return await asyncio.gather(*(one(completion) for completion in completions))
