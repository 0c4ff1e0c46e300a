"""How long the controller waits for the last evaluation."""

import asyncio
from pathlib import Path

import pytest

from areal_like.process.identity import EPISODES, SERVER
from areal_like.process.patience import answer_limit
from areal_like.rollout.lease_limit import LIMITS
from tests.support.controller_world import make_run, world_of

AGENTS = ("workflow.name=agent", "agent.command=[a]", "agent.timeout_s=90000", "agent.max_concurrent=1")


@pytest.mark.parametrize("words", [(), ("rollout.request_timeout=30",), AGENTS])
def test_the_last_evaluation_is_waited_for_until_a_row_has_ended_and_a_server_that_hangs_is_replaced(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = make_run(tmp_path / "run", *words)

    async def main() -> None:
        async with world_of(run) as world:
            await world.hello()
            world.controller.finished(early=False)
            waiting, lease_s = world.controller._final_wait, world.controller.settings.lease_limit_s
            assert waiting is not None
            limit = answer_limit(run.config, SERVER, EPISODES)
            assert waiting.limit_s == max(limit.seconds, lease_s)
            assert (waiting.key == LIMITS) is (words == AGENTS)

    asyncio.run(main())
