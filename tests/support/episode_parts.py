"""A worker in this process, with workflows that fail in every known way."""

import asyncio
import functools
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from areal_like.config.built_in import BUILT_IN
from areal_like.config.sections.data import DatasetConfig
from areal_like.data.datasets import load_datasets
from areal_like.data.tasks.addition import Addition, addition_reward
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.discovery.base import Entry
from areal_like.models import model_folder
from areal_like.process.http import HttpClient
from areal_like.rollout.episodes.controller_client import ControllerClient
from areal_like.rollout.episodes.episode import WorkerTools
from areal_like.rollout.episodes.generation_client import GenerationClient
from areal_like.rollout.episodes.rewards.base import parse_reward
from areal_like.rollout.episodes.rewards.outcomes import RewardCounts
from areal_like.rollout.episodes.runner import EpisodeRunner
from areal_like.rollout.episodes.worker import EpisodeWorker
from areal_like.rollout.episodes.workflows import make_workflow
from tests.support.ring_parts import SECRET, WORKER, Server, lease, open_controller, open_server

MINE = '''
import asyncio
from areal_like.rollout.trajectory import Trajectory

class Base:
    async def run(self, episode, row):
        self.ids = episode.encode(row["prompt"])
        return await self.go(episode, row)

class TwoTurns(Base):
    async def go(self, episode, row):
        first = await episode.generate(self.ids, n=1)
        second = await episode.generate(self.ids + first[0].token_ids, n=3, max_new_tokens=2, stop_token_ids=[5])
        rewards = await episode.score(row, ["046", *second])
        return [episode.trajectory(self.ids, sample, reward) for sample, reward in zip(first + second, rewards)]

class Refuses(Base):
    async def go(self, episode, row):
        return None

class Raises(Base):
    async def go(self, episode, row):
        return {}["nothing there"]

class Half(Base):
    """Its error has what a model wrote: half of a character."""
    async def go(self, episode, row):
        raise ValueError("no tool named \\ud83d")

class Exits(Base):
    async def go(self, episode, row):
        raise SystemExit(4)

class Words(Base):
    async def go(self, episode, row):
        return ["a", "b"]

class Empty(Base):
    async def go(self, episode, row):
        return []

class Hot(Base):
    async def go(self, episode, row):
        return await episode.generate(self.ids, temperature=0.9)

class Narrow(Base):
    async def go(self, episode, row):
        return await episode.generate(self.ids, top_p=0.9)

class Neutral(Base):
    """Repeats the default sampling, and sets how an answer ends."""
    async def go(self, episode, row):
        samples = await episode.generate(self.ids, top_p=1, top_k=-1, min_p=0, stop=["46"], min_new_tokens=0)
        texts = [sample.text for sample in samples]
        if set(texts) != {"0"} or any(sample.is_truncated for sample in samples):
            raise ValueError(f"the texts are {texts}")
        return [episode.trajectory(self.ids, sample, 1.0) for sample in samples]

class Unknown(Base):
    async def go(self, episode, row):
        return await episode.generate(self.ids, temprature=0.5)

class Long(Base):
    async def go(self, episode, row):
        return await episode.generate([3] * 64)

class Nothing(Base):
    async def go(self, episode, row):
        return await episode.generate([])

class Foreign(Base):
    async def go(self, episode, row):
        return await episode.generate(episode.encode("Ä"))

class Spoils(Base):
    async def go(self, episode, row):
        row["prompt"] = "spoilt"
        samples = await episode.generate(self.ids)
        return [episode.trajectory(self.ids, sample, 1.0) for sample in samples]

class Wrong(Base):
    """Trajectories that cannot be trained on, or only by chance."""
    def __init__(self, what, value):
        self.what, self.value = what, value
    async def go(self, episode, row):
        trajectory = episode.trajectory(self.ids, (await episode.generate(self.ids))[0], 1.0)
        if self.what in ("reward", "finish"):
            setattr(trajectory, self.what, self.value)
        else:
            getattr(trajectory, self.what)[-1 if self.value != -2.5 else 0] = self.value
        return [trajectory]

class Down(Base):
    async def go(self, episode, row):
        import areal_like
        raise areal_like.InfrastructureError("the judge is down")

class Unjudged(Base):
    """Answers of which the last ones have no reward."""
    def __init__(self, count):
        self.count = count
    async def go(self, episode, row):
        samples = await episode.generate(self.ids)
        rewards = [1.0] * (len(samples) - self.count) + [None] * self.count
        return [episode.trajectory(self.ids, *pair) for pair in zip(samples, rewards)]

class Cancels(Base):
    """Awaits a task of its own that it has cancelled."""
    async def go(self, episode, row):
        task = asyncio.create_task(asyncio.sleep(600))
        task.cancel()
        await task

class CancelsOne(Base):
    """The same in one sample of the group."""
    async def go(self, episode, row):
        return await episode.each_sample(self.one)
    async def one(self, episode):
        await Cancels.go(self, episode, None)
'''


def runner(folder):
    """Runs leases in a worker; `leases` gets the server's address, `meanwhile` runs beside them."""
    (folder / "mine.py").write_text(MINE)

    def run(leases, server=None, workflow=None, max_in_flight=8, **options):
        return asyncio.run(_run(folder, leases, server or Server(), workflow, max_in_flight, **options))

    return run


async def _run(folder, leases, server, workflow, max_in_flight, meanwhile=None, **options):
    async with open_server(server), open_controller(leases(server.address)) as controller:
        async with open_worker(folder, controller.address, workflow, max_in_flight, **options) as worker:
            working = asyncio.create_task(worker.work())
            if meanwhile is not None:
                await meanwhile(controller, server, worker)
            await asyncio.wait_for(working, 60)
        return controller


class Rewards:
    """Rewards in this process; a worker uses a child process."""

    def __init__(self, error=None, num_failed=None):
        """`error` is that of the first `num_failed` answers, None: of all."""
        self.counts, self.error, self.num_failed = RewardCounts(), error, num_failed

    async def try_score(self, row, completions, max_failed, seed):
        num_failed = 0 if self.error is None else len(completions) if self.num_failed is None else self.num_failed
        if num_failed > max_failed:
            raise self.error
        rewards = [parse_reward(addition_reward(row["prompt"], each, row["answer"])) for each in completions]
        return [None] * num_failed + rewards[num_failed:]


@functools.cache
def prepared():
    """Parts shared by all tests."""
    here = SearchFolders(Path(), Path())
    made: Any = DatasetConfig
    dataset = made(path="addition")
    task = SimpleNamespace(name="addition", args={})
    evaluator = SimpleNamespace(benchmarks=[])
    config = SimpleNamespace(task=task, train_dataset=dataset, valid_dataset=dataset, evaluator=evaluator)
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    return tokenizer, load_datasets(config, here, tokenizer)


@asynccontextmanager
async def open_worker(
    folder,
    address,
    workflow=None,
    max_in_flight=8,
    args=None,
    error=None,
    num_failed=None,
    limit_s=5.0,
    retries=0,
    check_format=False,
    **tools,
):
    tokenizer, datasets = prepared()
    async with HttpClient(WORKER, SECRET) as caller:
        link = ControllerClient(caller, WORKER, lambda waiting: Entry(address, 1, 1, 1), limit_s)
        client = GenerationClient(caller, 30.0, retries, link.another_server)
        known = {"allow_mismatched_sampling": False, "is_traced": False, "max_failed_share": 0.5} | tools
        made = make_workflow(
            workflow if workflow in (None, *BUILT_IN["workflow"]) else f"mine.py:{workflow}",
            args or {},
            SearchFolders(folder, folder),
        )
        episodes = EpisodeRunner(
            WorkerTools(tokenizer, client, Rewards(error, num_failed), **known), datasets, made, check_format
        )
        try:
            yield EpisodeWorker(link, episodes, max_in_flight)
        finally:
            await client.close()


VALID_ROW = Addition().rows("test")[0]


def one(address):
    return [lease(0, address, n=4)]
