"""The real client of OpenAI over the embedded engine: what is trained on stands in the engine's own log."""

import asyncio
import time
from pathlib import Path
from typing import Any

import openai

from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.gateway.session import SessionRules
from areal_like.rollout.episodes.generation_client import GenerationClient
from tests.support.agents import SAMPLING, user
from tests.support.chat_models import chat_folder
from tests.support.embedded_servers import Client, over_http, published, until
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease
from tests.support.tiny_models import tiny_qwen3

SHORT = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}"
UPDATE = "/control/update_weights"
FIXED_LENGTH = {**SAMPLING, "temperature": 1.0, "min_new_tokens": 20, "max_new_tokens": 20, "max_tokens": 64}


def test_ids_logprobs_and_versions_are_those_of_the_engine_across_an_update(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "chat", SHORT)

    async def test(engine: Client) -> None:
        log: list[Any] = []
        step, held_from = engine.engine.step, [1 << 40]

        def step_and_log() -> Any:
            if engine.engine.counts.steps >= held_from[0] and engine.engine.num_running == 2:
                time.sleep(0.001)
                return []
            finished = step()
            log.extend(sample for group in finished for sample in group.samples)
            return finished

        engine.engine.step = step_and_log  # type: ignore[method-assign]
        await engine.call("POST", UPDATE, published(tmp_path / "weights", 1, tiny_qwen3(1)))
        source = GenerationClient(engine.caller, 60.0, 0, _no_other)
        tools = WorkerTools(TextTokenizer(folder), source, Rewards(), False, False, 0.5)
        one = lease(0, engine.address, n=1, row_hash="0") | {"sampling": FIXED_LENGTH}
        session = Episode(tools, one).agent_session(SessionRules())
        endpoint = await tools.gateway.open(session)
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as policy:

            async def ask(*messages: Any, **asked: Any) -> Any:
                asked = {"extra_body": {"return_token_ids": True}, "logprobs": True, **asked}
                return (await policy.chat.completions.create(model="m", messages=messages, **asked)).choices[0]

            first = await ask(user("1+1"))
            held_from[0] = engine.engine.counts.steps + 4
            second = asyncio.create_task(ask(user("1+1"), first.message, user("2+2")))
            held = [second, asyncio.create_task(ask(user("3")))]
            await until(lambda: engine.engine.counts.steps >= held_from[0] and engine.engine.num_running == 2)
            await engine.call("POST", UPDATE, published(tmp_path / "weights", 2, tiny_qwen3(2)))
            held_from[0] = 1 << 40
            answers = [first, *await asyncio.gather(*held)]
        await tools.gateway.end(endpoint)
        await tools.gateway.close()
        await source.close()
        samples = session.trajectory(1.0)
        assert len(samples) == 2 and [each.metrics["template_breaks"] for each in samples] == [0, 0]
        trained = sorted(
            span
            for each in samples
            for span in zip(
                *(each.token_ids[each.loss_mask == 1].tolist(), each.versions[each.loss_mask == 1].tolist()),
                each.logprobs[each.loss_mask == 1].tolist(),
                strict=True,
            )
        )
        sampled = sorted(
            token for each in log for token in zip(each.token_ids, each.versions, each.logprobs, strict=True)
        )
        assert [each[:2] for each in trained] == [each[:2] for each in sampled] and len(trained) == 60
        assert {version for _, version, _ in trained} == {1, 2}
        assert max(abs(one[2] - other[2]) for one, other in zip(trained, sampled, strict=True)) < 1e-6
        assert sorted(each.token_ids for each in answers) == sorted(each.token_ids for each in log)

    over_http(test, folder)


async def _no_other(_: str, gone: str) -> str:
    raise AssertionError(f"the server at {gone} is gone")
