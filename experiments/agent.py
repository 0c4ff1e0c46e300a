"""An agent of the OpenAI Agents SDK that solves sums with a calculator.

As a program it finds its model by OPENAI_BASE_URL and OPENAI_API_KEY, and knows nothing of training:

    echo '{"prompt": "347+589="}' | python agent.py

`solve` is the same agent as a function, which spares a process for each sample.
"""

import json
import sys
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
from openai import AsyncOpenAI


@function_tool(failure_error_function=lambda context, fault: "?")
def calculator(expression: str) -> str:
    """Adds numbers, as in 12+34."""
    return str(sum(map(int, expression.split("+"))))


solver = Agent(name="solver", model="policy", tools=[calculator])


async def solve(row: dict[str, Any], client: AsyncOpenAI) -> None:
    run_config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
    await Runner.run(solver, row["prompt"], max_turns=2, run_config=run_config)


if __name__ == "__main__":
    print(Runner.run_sync(solver, json.loads(sys.stdin.readline())["prompt"], max_turns=2).final_output)
