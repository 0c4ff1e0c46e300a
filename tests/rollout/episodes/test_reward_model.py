"""The built-in reward `model`: the score of the reward model's server, or an error."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from transformers import AutoModelForSequenceClassification

from areal_like.discovery import MemoryEntries, NameStore, announce, memory_name_store, open_name_store
from areal_like.models import model_folder
from areal_like.process import http
from areal_like.process.errors import TimedOut, Unreachable
from areal_like.process.identity import (
    ATTEMPT,
    ETCD_PASSWORD,
    INCARNATION,
    PROCESS,
    RUN_DIR,
    TOKEN,
    CallGuard,
    Identity,
)
from areal_like.process.run import Run, open_run
from areal_like.rollout.episodes.rewards import RewardError, RewardSpec, score_client
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.rewards.score_client import ScoreClient
from areal_like.rollout.episodes.rewards.sum_pool import pool_kind
from areal_like.serving.reward_model.scorer import load_scorer
from areal_like.serving.reward_model.server import RewardModelServer
from tests.support.ring_parts import write_run

SECRET = "a secret of the run"
SERVER, WORKER = Identity("reward", 0), Identity("episodes", 0)
ROW = {"prompt": "12+34=", "answer": "046"}
MINE = """
import os, sys

def without_secrets():
    assert not {"AREAL_LIKE_TOKEN", "ETCDCTL_PASSWORD"} & set(os.environ), "the secrets of the run"
    assert "areal_like.rollout.episodes.rewards.score_client" not in sys.modules, "what holds the token is here"

without_secrets()

def computes(prompt, completion):
    without_secrets()
    return {"length": len(completion), "score": 0.25}

async def waits(prompt, completion):
    without_secrets()
    return 3.0
"""
ANSWERS = ["046", "64", "", "4" * 6, "046", "9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with a score head, and its tokenizer."""
    path: Path = tmp_path_factory.mktemp("reward") / "model"
    shutil.copytree(model_folder("builtin:tiny-addition"), path)
    torch.manual_seed(5)
    model: Any = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.5)
    model.save_pretrained(path)
    return path


def scores_of(folder: Path, prompt: str, answers: list[str]) -> list[float]:
    """Scores by transformers, for the ids of prompt, answer and end token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for answer in answers:
        ids = [*tokenizer.encode(prompt), *tokenizer.encode(answer), tokenizer.eos_token_id]
        with torch.no_grad():
            scores.append(float(model(torch.tensor([ids])).logits[0, 0]))
    return scores


class Ring:
    """A run with a reward model's server that can be stopped and started again, and the pool of a worker."""

    def __init__(self, run: Run, folder: Path, pool: RewardPool) -> None:
        self.run, self.folder, self.pool = run, folder, pool
        self.requests: list[int] = []
        self._served: http.HttpServer | None = None
        self._names: NameStore | None = None

    async def start(self) -> None:
        server = RewardModelServer(
            load_scorer(self.folder, "cpu"), CallGuard(SECRET, 1), self.run.run_id, str(self.folder)
        )
        app = server.application()

        async def count(request: web.Request) -> None:
            self.requests.append(len(await http.read_json(request)))

        @web.middleware
        async def counting(request: web.Request, handler: http.Handler) -> web.StreamResponse:
            await count(request)
            return await handler(request)

        app.middlewares.append(counting)
        self._served = await http.serve(app, "127.0.0.1")
        self._names = open_name_store(self.run, SERVER)
        announce(self._names, SERVER, self._served.address)

    async def stop(self) -> None:
        if self._served is not None and self._names is not None:
            self._names.close()
            await self._served.close()
            self._served = None

    async def rewards(self, *answers: str) -> list[Any]:
        """The reward or error of each answer, requested concurrently."""

        async def one(answer: str) -> Any:
            try:
                return (await self.pool.score(ROW, [answer]))[0].value
            except RewardError as error:
                return str(error)

        return await asyncio.gather(*map(one, answers))


@pytest.fixture
def over(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(test: Callable[[Ring], Awaitable[None]], parts: tuple[Any, ...] = (), **changes: Any) -> None:
        """`parts`: of a sum instead, with rewards of MINE."""
        args = {"path": str(folder)}
        directory = write_run(tmp_path, reward__name="model", reward__args=args, **changes)
        ours = {RUN_DIR: str(directory), PROCESS: "episodes/0", TOKEN: SECRET, ATTEMPT: "1", INCARNATION: "1"}
        for name, value in ours.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "mine.py").write_text(MINE)
        asyncio.run(main(open_run(directory), parts, test))

    async def main(run: Run, parts: tuple[Any, ...], test: Callable[[Ring], Awaitable[None]]) -> None:
        async with opened(run, parts) as ring:
            await asyncio.wait_for(test(ring), 60)

    @asynccontextmanager
    async def opened(run: Run, parts: tuple[Any, ...]) -> AsyncIterator[Ring]:
        reward, rollout = run.config.reward, run.config.rollout
        spec = RewardSpec("model", dict(reward.args), "addition", {}, str(run.folder), str(run.cwd))
        if parts:
            spec = RewardSpec(None, {}, None, {}, str(tmp_path), str(tmp_path), parts)
        pool = pool_kind(spec)(spec, reward.timeout_s, retries=0, setup_timeout_s=rollout.setup_timeout + 20)
        ring = Ring(run, folder, pool)
        try:
            yield ring
        finally:
            await pool.close()
            await ring.stop()

    return make


def test_the_reward_of_an_answer_is_its_score(over, folder):
    async def test(ring: Ring) -> None:
        await ring.start()
        await ring.pool.ready(ROW)
        rewards = await ring.rewards(*ANSWERS)
        assert rewards == pytest.approx(scores_of(folder, ROW["prompt"], ANSWERS), abs=1e-5)
        assert rewards[0] == pytest.approx(rewards[4], abs=1e-5) and len({round(one, 4) for one in rewards}) == 5

    over(test)


@pytest.mark.parametrize("others", [["computes", "waits"], ["waits"], ["computes"]])
def test_other_parts_of_a_sum_see_no_secrets_of_the_run(over, folder, monkeypatch, others):
    """Neither when they are imported nor when they are called, and the sum is that of all parts."""
    weights = {"computes": 0.5, "waits": -1.0}
    parts: list[dict[str, Any]] = [
        {"name": f"mine.py:{name}", "weight": weights[name], "args": {}, "label": None} for name in others
    ]
    parts.insert(1, {"name": "model", "weight": 2.0, "args": {"path": str(folder)}, "label": "scored"})
    monkeypatch.setenv(ETCD_PASSWORD, "a password")

    async def test(ring: Ring) -> None:
        await ring.start()
        await ring.pool.ready(ROW)
        found = await ring.pool.score(ROW, ANSWERS)
        own = {"computes": [float(len(answer)) for answer in ANSWERS], "waits": [3.0] * len(ANSWERS)}
        scores = scores_of(folder, ROW["prompt"], ANSWERS)
        for index, reward in enumerate(found):
            values = {name: own[name][index] for name in others} | {"scored": pytest.approx(scores[index], abs=1e-5)}
            assert {name: reward.parts[name] for name in values} == values
            assert reward.score == (0.25 if others[0] == "computes" else 3.0)
            total = 2.0 * scores[index] + sum(weights[name] * own[name][index] for name in others)
            assert reward.value == pytest.approx(total, abs=1e-4)
        assert sum(ring.requests) == len(ANSWERS) and ring.pool.counts.errors == 0

    over(test, tuple(parts))


def test_waiting_answers_are_scored_in_one_request(over):
    async def test(ring: Ring) -> None:
        await ring.start()
        await ring.pool.ready(ROW)
        several = await asyncio.gather(*(ring.pool.score(ROW, [f"{number:03}"] * 8) for number in range(32)))
        assert all(len({reward.value for reward in group}) == 1 for group in several)
        assert sum(ring.requests) == 256 and len(ring.requests) < 64

    over(test)


def test_a_text_that_is_too_long_is_an_error_and_the_others_get_their_reward(over, folder):
    async def test(ring: Ring) -> None:
        await ring.start()
        await ring.pool.ready(ROW)
        rewards = await ring.rewards("046", "4" * 80, "64")
        assert [rewards[0], rewards[2]] == pytest.approx(scores_of(folder, ROW["prompt"], ["046", "64"]), abs=1e-5)
        assert "reward/0 refuses it: text 0 has 87 tokens, and the model takes 64" in rewards[1]

    over(test)


def test_a_replaced_reward_server_is_found(over, folder):
    async def test(ring: Ring) -> None:
        await ring.start()
        await ring.pool.ready(ROW)
        await ring.rewards("1")
        await ring.stop()
        waiting = asyncio.create_task(ring.rewards("046", "64"))
        await asyncio.wait([waiting], timeout=0.5)
        assert not waiting.done()
        await ring.start()
        assert await waiting == pytest.approx(scores_of(folder, ROW["prompt"], ["046", "64"]), abs=1e-5)
        assert ring.pool.counts.errors == 0

    over(test)


def test_a_server_that_is_away_longer_than_an_answer_may_take_is_awaited(over, folder):
    async def test(ring: Ring) -> None:
        await ring.start()
        await ring.pool.ready(ROW)
        await ring.stop()
        waiting = asyncio.create_task(ring.rewards("046"))
        await asyncio.wait([waiting], timeout=4)
        assert not waiting.done()
        await ring.start()
        assert await waiting == pytest.approx(scores_of(folder, ROW["prompt"], ["046"]), abs=1e-5)
        assert ring.pool.counts.errors == ring.pool.counts.timeouts == 0

    over(test, reward__timeout_s=1)


def asked(monkeypatch: pytest.MonkeyPatch, answers: Callable[[str], Any], patience_s: float) -> str:
    """The error of a text whose server answers so, and that waits for at most 60 s."""

    async def json(_client: Any, method: str, address: str, path: str, body: Any = None, timeout_s: float = 0) -> Any:
        await asyncio.sleep(0.01)
        return answers(path)

    monkeypatch.setattr(http.HttpClient, "json", json)
    monkeypatch.setattr(score_client, "RETRY_DELAY_S", 0.01)

    async def main() -> str:
        store = memory_name_store("run", "reward/0", MemoryEntries())
        announce(store, SERVER, "127.0.0.1:1")
        async with asyncio.timeout(60):
            with pytest.raises(RuntimeError) as failed:
                await ScoreClient(store, WORKER, SECRET, patience_s, 15.0).score([1])
        return str(failed.value)

    return asyncio.run(main())


def test_a_server_that_scores_others_but_not_this_answer_in_time_is_too_slow(monkeypatch):
    counts = itertools.count()

    def answers(path: str) -> Any:
        if path == "/health":
            return {"scored": next(counts)}
        raise Unreachable("127.0.0.1:1", "no answer to /score within 15 s")

    assert asked(monkeypatch, answers, 1000.0) == "reward/0 gave no score within 15 s (reward.timeout_s)"


def test_a_server_that_scores_nothing_is_awaited_until_it_should_have_been_replaced(monkeypatch):
    def answers(path: str) -> Any:
        if path == "/health":
            return {"scored": 7}
        raise Unreachable("127.0.0.1:1", "no answer to /score within 15 s")

    error = asked(monkeypatch, answers, 0.5)
    assert error.startswith("reward/0 has not answered for ") and "rollout.setup_timeout, watchdog" in error


def test_a_server_that_never_starts_is_named_with_the_limit(over):
    async def test(ring: Ring) -> None:
        late = r"rollout\.setup_timeout: waited \d+ s for the address of reward/0"
        with open_name_store(ring.run, WORKER) as names, pytest.raises(TimedOut, match=late):
            ScoreClient(names, WORKER, SECRET, 0.2, 1.0)

    over(test)
