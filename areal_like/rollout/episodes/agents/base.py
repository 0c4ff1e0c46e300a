"""AgentProgram: what talks to the policy in one episode."""

from typing import Any, Protocol

from areal_like.rollout.episodes.gateway.gateway import Endpoint


class AgentError(Exception):
    """An agent has failed. Its message says how, and is enough without a traceback."""


class AgentProgram(Protocol):
    async def run(self, row: dict[str, Any], endpoint: Endpoint) -> Any:
        """Returns what may be the reward: the last line of a program, the value of a function. Raises AgentError.
        When it is cancelled, the agent has ended before it returns."""
        ...
