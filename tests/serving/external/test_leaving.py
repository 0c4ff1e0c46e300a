"""An engine that runs on after a run: the next one finds it as if nobody had used it."""

import asyncio
from pathlib import Path

import pytest

from areal_like.process.run import Run
from areal_like.process.waiting import Waiting
from areal_like.serving.attendant import attach
from areal_like.serving.attendant.attach import AttachedEngine, leave
from areal_like.serving.attendant.base import Facts, NotReady
from areal_like.serving.attendant.gate import Gate
from areal_like.serving.attendant.rest import Rest
from areal_like.serving.attendant.server import TOLD
from areal_like.serving.attendant.updates import UPDATE
from areal_like.serving.orders import KEEP
from tests.support.attendant_world import RUN_ID, TinyEngine
from tests.support.rollout_world import grpo
from tests.support.tiny_models import write_tiny_model


class Frozen(TinyEngine):
    """Generates its first token only where it is not paused, as engines do."""

    async def ready(self) -> Facts:
        if not self._runs.is_set():
            raise NotReady("it is paused")
        return await super().ready()


@pytest.mark.parametrize("can_keep", [True, False])
def test_a_pause_and_adapters_that_a_run_has_left_behind_are_gone_when_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_keep: bool
) -> None:
    folder = write_tiny_model(tmp_path / "model")
    run = Run(tmp_path, grpo(f"actor.path={folder}"), "grpo", RUN_ID, tmp_path, tmp_path)

    async def main() -> None:
        engine = Frozen(can_keep=can_keep)
        engine.adapters = {"v3": None, "v4-00ff00ff00ff00ff": None, "very-mine": None, "v5-of-mine": None}
        monkeypatch.setattr(attach, "connect", lambda *given: engine)
        if can_keep:
            await engine.pause()
        waiting = Waiting("it", 5.0, "rollout.setup_timeout")
        async with AttachedEngine(run, "vllm", "127.0.0.1:9", "", waiting, None) as attached:
            await asyncio.wait_for(attached.start(), 60)
            assert set(engine.adapters) == {"very-mine", "v5-of-mine"}
            assert engine.log.count("resume") == int(can_keep)

    asyncio.run(main())


def test_an_engine_that_is_not_there_yet_is_waited_for_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        engine = TinyEngine(can_keep=True, stopped=True)
        await attach.clear(engine)
        engine.stopped = False
        await attach.clear(engine)

    asyncio.run(main())


def test_a_run_that_ends_in_a_pause_leaves_the_engine_awake(tmp_path: Path) -> None:
    async def main() -> None:
        engine = TinyEngine(can_keep=True)
        rest = Rest(engine, Gate())
        await rest.begin(TOLD, KEEP)
        await rest.begin(UPDATE, KEEP)
        await leave(rest, (TOLD, UPDATE))
        assert engine.log == ["pause", "resume"]
        await rest.begin(TOLD, KEEP)
        engine.stopped = True
        await leave(rest, (TOLD, UPDATE))

    asyncio.run(main())
