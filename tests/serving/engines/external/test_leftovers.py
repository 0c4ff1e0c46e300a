"""A run finds an attached engine without leftovers of the previous run."""

import asyncio
from pathlib import Path

import pytest

from areal_like.process.wait import NamedWait
from areal_like.serving.control_protocol import KEEP
from areal_like.serving.engines.base import EngineInfo
from areal_like.serving.engines.external import attach
from areal_like.serving.engines.external.attach import attached, release_pauses
from areal_like.serving.engines.external.external_engine import NotReady
from areal_like.serving.pauser import Pauser
from areal_like.serving.request_queue import RequestQueue
from areal_like.serving.server import CONTROLLER
from areal_like.serving.updates import UPDATE
from tests.support.external_server import TinyEngine


class FrozenEngine(TinyEngine):
    """Generates its first token only where it is not paused, as engines do."""

    async def ready(self) -> EngineInfo:
        if not self._runs.is_set():
            raise NotReady("it is paused")
        return await super().ready()


@pytest.mark.parametrize("can_keep", [True, False])
def test_a_pause_and_adapters_left_by_a_run_are_removed_by_the_next_run(
    can_keep: bool,
) -> None:
    async def main() -> None:
        engine = FrozenEngine(can_keep=can_keep)
        engine.adapters = {"v3": None, "v4-00ff00ff00ff00ff": None, "very-mine": None, "v5-of-mine": None}
        if can_keep:
            await engine.pause("keep")
        waiting = NamedWait("it", 5.0, "rollout.setup_timeout")
        async with attached("vLLM", "127.0.0.1:9", "", None, waiting, 60.0, lambda *given: engine):  # type: ignore[arg-type]
            assert set(engine.adapters) == {"very-mine", "v5-of-mine"}
            assert engine.log.count("resume") == int(can_keep)

    asyncio.run(main())


def test_attaching_waits_for_an_engine_that_does_not_answer_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        engine = TinyEngine(can_keep=True, stopped=True)
        await attach.remove_leftovers(engine)
        engine.stopped = False
        await attach.remove_leftovers(engine)

    asyncio.run(main())


def test_a_run_that_ends_in_a_pause_resumes_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        engine = TinyEngine(can_keep=True)
        pauser = Pauser(engine, RequestQueue(), 60.0)
        await pauser.pause(CONTROLLER, KEEP)
        await pauser.pause(UPDATE, KEEP)
        await release_pauses(pauser, (CONTROLLER, UPDATE))
        assert engine.log == ["pause", "resume"]
        await pauser.pause(CONTROLLER, KEEP)
        engine.stopped = True
        await release_pauses(pauser, (CONTROLLER, UPDATE))

    asyncio.run(main())
