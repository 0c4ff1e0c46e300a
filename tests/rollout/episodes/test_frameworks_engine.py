"""Agents of frameworks over the embedded engine, with a model that calls its tool by itself."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import AutoModelForCausalLM

from areal_like.models import model_folder
from areal_like.rollout.episodes.gateway.session import SessionRules
from areal_like.rollout.episodes.tools.call_format import CallFormat
from tests.support.agents import SAMPLING
from tests.support.embedded_servers import Client, over_http, published
from tests.support.engine_log import EngineLog, agent_session

SHIPPED = model_folder("builtin:tiny-tools")
ENOUGH = 200
"""Sums; the model calls its calculator for some of the first."""


async def openai_agent(question: str, client: openai.AsyncOpenAI, called: list[str], streams: bool) -> Any:
    from agents import Agent, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool
    from agents.exceptions import MaxTurnsExceeded

    @function_tool(failure_error_function=lambda context, fault: "?")
    def calculator(expression: str) -> str:
        """Adds numbers, as in 12+34."""
        called.append(expression)
        return str(sum(map(int, expression.split("+"))))

    solver = Agent(name="solver", model="policy", tools=[calculator])
    run_config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
    try:
        if not streams:
            return (await Runner.run(solver, question, max_turns=2, run_config=run_config)).final_output
        result = Runner.run_streamed(solver, question, max_turns=2, run_config=run_config)
        raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        texts = [data.delta for data in raw if data.type == "response.output_text.delta"]
        assert str(result.final_output) in "".join(texts)
        return result.final_output
    except (MaxTurnsExceeded, ModelBehaviorError):  # the model calls again, or what there is not
        return None


async def pydantic_agent(question: str, client: openai.AsyncOpenAI, called: list[str], streams: bool) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    solver = Agent(OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client)), retries=0)

    @solver.tool_plain
    def calculator(expression: str) -> str:
        """Adds numbers, as in 12+34."""
        called.append(expression)
        try:
            return str(sum(map(int, expression.split("+"))))
        except ValueError:
            return "?"

    limits = UsageLimits(request_limit=2)
    try:
        if not streams:
            return (await solver.run(question, usage_limits=limits)).output
        async with solver.run_stream(question, usage_limits=limits) as result:
            return "".join([part async for part in result.stream_text(delta=True)])
    except (UnexpectedModelBehavior, UsageLimitExceeded):
        return None


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("agent", [openai_agent, pydantic_agent])
def test_agents_whose_model_calls_a_tool_are_trained_as_the_engine_sampled_them(
    tmp_path: Path, agent: Callable[..., Awaitable[Any]], streams: bool
) -> None:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    sampling = {**SAMPLING, "temperature": 1.0, "max_new_tokens": 24, "max_tokens": 64}
    rules = SessionRules(call_format=CallFormat(name="python"))

    async def test(engine: Client) -> None:
        weights = published(tmp_path / "weights", 1, model)
        await engine.call("POST", "/control/update_weights", weights)
        log = EngineLog(engine)
        samples: list[Any] = []
        called: list[str] = []
        answered_after_call = False
        for number in range(ENOUGH):
            before = len(called)
            async with agent_session(engine, SHIPPED, sampling, rules) as (session, client):
                answer = await agent(f"{100 + number}+{999 - 2 * number}=", client, called, streams)
            played = session.trajectory(1.0)
            samples += played
            answered_after_call = len(called) > before and answer is not None
            if answered_after_call:
                break
        log.check(samples)
        assert answered_after_call and {each.metrics["undelivered_calls"] for each in samples} == {0}
        metrics = samples[-1].metrics
        assert (metrics["turns"], metrics["tool_calls"], metrics["template_breaks"]) == (2, 1, 0)
        assert [each["role"] for each in samples[-1].messages] == ["user", "assistant", "tool", "assistant"]

    over_http(test, SHIPPED, model=model)
