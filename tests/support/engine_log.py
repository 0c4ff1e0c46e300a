"""Sessions of agents over an embedded engine, and what the engine itself says that it has sampled."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import torch

from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.gateway.session import AgentSession, SessionRules
from areal_like.rollout.episodes.generation_client import GenerationClient
from tests.support.embedded_servers import Client
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease
from tests.support.tiny_models import EOS_ID, tiny_qwen3


class EngineLog:
    """What an engine has sampled, as it says itself: prompt, ids, versions and log-probabilities of each answer. The
    engine makes no step while `holds`."""

    def __init__(self, client: Client) -> None:
        self.engine = client.engine
        self.answers: list[tuple[list[int], Any]] = []
        self.holds: Callable[[], bool] = lambda: False
        prompts: dict[int, list[int]] = {}
        step, submit = self.engine.step, self.engine.submit

        def logged_submit(group: Any) -> int:
            number = submit(group)
            prompts[number] = list(group.prompt)
            return number

        def logged_step() -> Any:
            if self.holds():
                time.sleep(0.001)
                return []
            finished = step()
            self.answers += [(prompts[group.number], sample) for group in finished for sample in group.samples]
            return finished

        self.engine.step, self.engine.submit = logged_step, logged_submit  # type: ignore[method-assign]

    def hold_both(self) -> Callable[[], bool]:
        """Two answers are open, and have some tokens."""
        first = self.engine.counts.steps + 4
        self.holds = lambda: self.engine.counts.steps >= first and self.engine.num_running == 2
        return self.holds

    def check(self, samples: list[Any]) -> None:
        """Every token that was sampled is trained on once, after the ids that the engine was given, with its version
        and log-probability; and no other."""
        logged = Counter(
            (*map(tuple, (prompt, each.token_ids, each.versions)), tuple(round(value, 5) for value in each.logprobs))
            for prompt, each in self.answers
        )
        trained: Counter[Any] = Counter()
        for each in samples:
            assert each.problem() is None
            ids, mask = each.token_ids.tolist(), each.loss_mask.tolist()
            starts = [at for at in range(len(ids)) if mask[at] and not mask[at - 1]]
            for start in starts:
                end = next((at for at in range(start, len(ids)) if not mask[at]), len(ids))
                span = slice(start, end)
                logprobs = tuple(round(value, 5) for value in each.logprobs[span].tolist())
                trained[tuple(ids[:start]), tuple(ids[span]), tuple(each.versions[span].tolist()), logprobs] += 1
        assert trained == logged and set(logged.values()) == {1}

    def check_versions(self, seeds: dict[int, int]) -> int:
        """The model of its version gives each answer the log-probabilities that the engine has reported. Returns of
        how many: those of one version."""
        whole = [(prompt, each) for prompt, each in self.answers if len(set(each.versions)) == 1]
        for prompt, each in whole:
            model = tiny_qwen3(seeds[each.versions[0]])
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *each.token_ids]])).logits[0, len(prompt) - 1 : -1]
            logits[:, EOS_ID] = -torch.inf  # of a fixed length
            expected = logits.log_softmax(-1).gather(1, torch.tensor(each.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(each.logprobs), expected, atol=1e-4, rtol=0)
        return len(whole)


@asynccontextmanager
async def agent_session(
    engine: Client, folder: Path, sampling: dict[str, Any], rules: SessionRules | None = None
) -> AsyncIterator[tuple[AgentSession, openai.AsyncOpenAI]]:
    source = GenerationClient(engine.caller, 60.0, 0, _no_other)
    tools = WorkerTools(TextTokenizer(folder), source, Rewards(), False, False, 0.5)
    one = lease(0, engine.address, n=1, row_hash="0") | {"sampling": sampling}
    session = Episode(tools, one).agent_session(rules or SessionRules())
    endpoint = await tools.gateway.open(session)
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key, max_retries=0) as policy:
        yield session, policy
    await tools.gateway.end(endpoint)
    await tools.gateway.close()
    await source.close()


async def _no_other(_: str, gone: str) -> str:
    raise AssertionError(f"the server at {gone} is gone")
