"""`recover.skip_*` in the controller, when a run resumes from a checkpoint of an earlier one."""

import asyncio
from pathlib import Path

import pytest

from areal_like.process.frames import pack
from areal_like.process.run import LEDGER
from areal_like.rollout.audit import audit
from areal_like.rollout.ledger import read_ledger
from tests.support.controller_world import make_run, world_of

STEPS = 4


def left_behind(folder: Path, step: int = 2) -> Path:
    """The checkpoint of a run after `step` steps."""
    checkpoint = folder / f"step_{step:06}"

    async def first() -> None:
        async with world_of(make_run(folder / "run", f"total_train_steps={STEPS}")) as world:
            await world.hello()

            async def save(done: int) -> None:
                if done == step:
                    frame = await world.frame("/state", {"step": step})
                    (checkpoint / "resume").mkdir(parents=True)
                    (checkpoint / "resume" / "controller.frame").write_bytes(pack(*frame))

            working = asyncio.create_task(world.work())
            await world.train(save, until=step)
            working.cancel()

    asyncio.run(first())
    return checkpoint


@pytest.mark.parametrize(("skip", "step"), [("progress", 0), ("dataloader", 2)])
def test_skipped_state_starts_again_and_nothing_is_trained_on_twice(tmp_path, skip, step):
    checkpoint = left_behind(tmp_path)
    digest = "other" if skip == "dataloader" else "d1"

    async def second() -> None:
        words = (f"total_train_steps={STEPS}", f"recover.skip_{skip}=true")
        run = make_run(tmp_path / "run", *words, step=step, checkpoint=checkpoint, attempt=2)
        async with world_of(run) as world:
            await world.hello(digest=digest)
            working = asyncio.create_task(world.work())
            assert len(await world.train()) == STEPS - step
            async with asyncio.timeout(60):
                await world.life
                await working

    asyncio.run(second())
    events = [event for event in read_ledger(tmp_path / "run" / "rollouts" / LEDGER) if event["attempt"] == 2]
    assert [event["step"] for event in events if event["event"] == "trained"] == list(range(step, STEPS))
    assert [event["data_anew"] for event in events if event["event"] == "recovered"] == [skip == "dataloader"]
    assert audit(events, 1) == []
