"""Several turns with tools: a counter that each episode has for itself."""

import verifiers as vf  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-untyped]


def add(number: int, counter: dict[str, int]) -> str:
    """Adds to the counter.

    Args:
        number: What is added.
        counter: The counter of the episode.
    """
    if number < 0:
        raise ValueError("only up")
    counter["value"] += number
    return f"now {counter['value']}"


class Counting(vf.StatefulToolEnv):
    async def setup_state(self, state, **more):
        state["counter"] = {"value": 0}
        return await super().setup_state(state, **more)

    def update_tool_args(self, tool_name, tool_args, messages, state, **more):
        return {**tool_args, "counter": state["counter"]}


def reached(state, answer):
    return float(state["counter"]["value"] == int(answer))


def load_environment():
    environment = Counting(
        dataset=Dataset.from_list([{"question": f"count to {number}", "answer": str(number)} for number in (3, 5)]),
        rubric=vf.Rubric([reached]),
        max_turns=4,
    )
    environment.add_tool(add, args_to_skip=["counter"])
    return environment
