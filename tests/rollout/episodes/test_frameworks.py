"""Agents of other frameworks, written as their documents show: what they get, and what is trained on."""

import asyncio
import json
from typing import Any

import openai
import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.gateway.gateway import Endpoint
from tests.data.test_chat_template_real import folder_of
from tests.support.agents import SampledTexts, open_session


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return TextTokenizer(folder_of("qwen2_5", tmp_path_factory.mktemp("frameworks") / "qwen"))


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(engine: SampledTexts, agent: Any) -> Any:
    """The session, which has ended."""

    async def run() -> Any:
        async with open_session(engine, None, ConversationRules()) as (session, endpoint):
            await agent(endpoint)
        return session

    return asyncio.run(run())


def check(session: Any, engine: SampledTexts, num_sequences: int, **metrics: float) -> None:
    """Every answer is trained on, once, and nothing is orphaned."""
    samples = session.trajectory(1.0)
    engine.check_exact(samples)
    assert sum(int(each.loss_mask.sum()) for each in samples) == sum(len(each["token_ids"]) for _, each in engine.log)
    assert len(samples) == num_sequences
    expected = {"turns": len(engine.log), "undelivered_calls": 0, **metrics}
    assert {name: samples[0].metrics[name] for name in expected} == expected


@pytest.mark.parametrize("interface", ["responses", "chat_completions"])
@pytest.mark.parametrize("streams", [False, True])
def test_openai_agents_call_a_tool_and_hand_over_to_another_agent(qwen, interface, streams):
    from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool

    texts = [called("add", numbers=[1, 2], carry=False), called("transfer_to_poet"), "Three!"]
    engine, seen = SampledTexts(qwen, *texts, end="<|im_end|>"), []

    @function_tool
    def add(numbers: list[int], carry: bool) -> int:
        """Adds numbers."""
        seen.append((numbers, carry))
        return sum(numbers)

    poet = Agent(name="poet", instructions="Rhyme.")
    solver = Agent(name="solver", instructions="Be brief.", tools=[add], handoffs=[poet])

    async def agent(endpoint: Endpoint) -> None:
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key)
        provider = OpenAIProvider(openai_client=client, use_responses=interface == "responses")
        run_config = RunConfig(model_provider=provider, tracing_disabled=True)
        async with client:
            if streams:
                result: Any = Runner.run_streamed(solver, "1+2?", run_config=run_config)
                raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
                deltas = [data.delta for data in raw if data.type == "response.output_text.delta"]
                assert "".join(deltas) == "Three!"
            else:
                result = await Runner.run(solver, "1+2?", run_config=run_config)
            assert (result.final_output, result.last_agent.name) == ("Three!", "poet")

    session = play(engine, agent)
    assert seen == [([1, 2], False)]
    check(session, engine, 2, tool_calls=2)


@pytest.mark.parametrize("streams", [False, True])
def test_pydantic_ai_calls_a_tool_that_asks_a_second_agent(qwen, streams):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    engine = SampledTexts(qwen, called("ask", question="1+2?", brief=False), "It is 3.", "Three!", end="<|im_end|>")

    async def agent(endpoint: Endpoint) -> None:
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key)
        model = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client))
        expert = Agent(model, instructions="You add.")
        poet = Agent(model, instructions="Rhyme.")

        @poet.tool_plain
        async def ask(question: str, brief: bool) -> str:
            """Asks an expert."""
            assert brief is False
            return (await expert.run(question)).output

        async with client:
            if streams:
                async with poet.run_stream("What is one and two?") as result:
                    assert "".join([part async for part in result.stream_text(delta=True)]) == "Three!"
            else:
                assert (await poet.run("What is one and two?")).output == "Three!"

    check(play(engine, agent), engine, 2, tool_calls=1, template_breaks=0)
