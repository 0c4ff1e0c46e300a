"""The controller measures with the first weights how much right servers differ from the trainer in the probe."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.errors import Failure
from areal_like.process.frames import pack
from areal_like.rollout.controller.probe_noise import ProbeNoise
from areal_like.weights.probe import Probe
from tests.rollout.test_controller_updates import scenario, served
from tests.support.controller_world import PROBE, World, make_run, world_of

pytestmark = pytest.mark.timeout(300)

HALF = {"dtype": "bfloat16", "engine": "vllm 0.32"}


def apart(world: World, gap: float, index: int = 0, **facts: Any) -> None:
    world.servers[index].probe = [logprob + gap for logprob in PROBE.logprobs]
    world.servers[index].facts = {**HALF, **facts}


async def ended(world: World) -> str:
    with pytest.raises(Failure) as failure:
        async with asyncio.timeout(60):
            await world.life
    return str(failure.value)


def test_later_weights_may_differ_by_four_times_the_noise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        for version, gap in enumerate((0.04, 0.15)):
            apart(world, gap)
            await world.publish(version)
            await served(world, version)
        assert world.servers[0].noise == [None, pytest.approx([0.04, 0.04])]
        assert world.controller.servers.times.take()["offpolicy/probe_difference"] == pytest.approx(0.15)
        apart(world, 0.17)
        await world.publish(2)
        message = await ended(world)
        assert "server/0 cannot serve weights v2: trainer and server compute different models" in message
        assert "with the run's first weights they differed by 0.04 on average (0.04 at one of ten tokens)" in message

    with caplog.at_level(logging.INFO):
        scenario(tmp_path, test)
    (line,) = [record.message for record in caplog.records if record.message.startswith("probe: ")]
    assert "with weights v0 server/0 differs from the trainer by 0.04 nats on average over 2 tokens" in line
    assert (
        "(vllm 0.32 in bfloat16 x 1, trainer in bfloat16, tokens bc80fbd1); later weights may differ by 0.16 and 0.16"
        in line
    )


def test_a_replaced_server_is_measured_by_the_noise_of_the_first(tmp_path: Path) -> None:
    """Its weights are no longer those of the start."""

    async def test(world: World) -> None:
        apart(world, 0.01)
        await world.publish(0)
        await served(world, 0)
        await world.remove_server(world.servers[0])
        await world.publish(1)
        await world.add_server(0, incarnation=2)
        apart(world, 0.06)
        assert "allows a difference of 0.04 on average" in await ended(world)

    scenario(tmp_path, test)


def test_a_late_server_may_differ_by_as_much_as_the_others(tmp_path: Path) -> None:
    """Its own check would refuse what only first weights are refused for: it has the noise from its first update on."""

    async def test(world: World) -> None:
        apart(world, 0.1)
        await world.publish(0)
        await served(world, 0)
        await world.remove_server(world.servers[0])
        await world.publish(1)
        late = await world.add_server(0, incarnation=2)
        apart(world, 0.3)
        await served(world, 1)
        assert late.noise == [pytest.approx([0.1, 0.1])]

    scenario(tmp_path, test)


def test_a_server_of_another_kind_has_a_noise_of_its_own(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_server(1)
        apart(world, 0.01)
        apart(world, 0.19, index=1, processes=2)
        await world.publish(0)
        await world.until(lambda: len(world.controller.servers.probe_noise.state()) == 2)
        await served(world, 0)

    scenario(tmp_path, test, "rollout.backend=embedded:d2")


@pytest.mark.parametrize(("is_kept", "tokens"), [(True, PROBE.token_ids), (False, PROBE.token_ids), (True, [3, 2, 1])])
def test_a_checkpoint_keeps_the_noise_of_its_tokens(tmp_path: Path, is_kept: bool, tokens: list[int]) -> None:
    """A run that continues does not take its own trained weights for the measure, unless its rows are others."""
    checkpoint = tmp_path / "step_000002"
    (checkpoint / "resume").mkdir(parents=True)

    async def first(world: World) -> None:
        apart(world, 0.02)
        await world.publish(0)
        await served(world, 0)
        frame = await world.frame("/state", {"step": 0})
        header = frame.header if is_kept else {key: frame.header[key] for key in frame.header if key != "probe_noise"}
        (checkpoint / "resume/controller.frame").write_bytes(pack(header, frame.blobs))

    async def second() -> None:
        async with world_of(make_run(tmp_path / "run", step=0, checkpoint=checkpoint, attempt=2)) as world:
            apart(world, 0.15)
            await world.publish(0, PROBE._replace(token_ids=tokens))
            if is_kept and tokens == PROBE.token_ids:
                assert "with the run's first weights they differed by 0.02" in await ended(world)
            else:
                await served(world, 0)

    scenario(tmp_path, first)
    asyncio.run(second())


def test_a_run_that_continues_keeps_the_tokens_of_its_probe(tmp_path: Path) -> None:
    """Those of its rows may be others by then: a chat template may contain the date."""
    checkpoint = tmp_path / "step_000002"
    (checkpoint / "resume").mkdir(parents=True)

    async def first(world: World) -> None:
        frame = await world.frame("/state", {"step": 0})
        assert frame.header["probe_tokens"] == PROBE.token_ids
        header = {**frame.header, "probe_tokens": [9, 8, 7]}
        (checkpoint / "resume/controller.frame").write_bytes(pack(header, frame.blobs))

    async def second() -> None:
        async with world_of(make_run(tmp_path / "run", step=0, checkpoint=checkpoint, attempt=2)) as world:
            await world.hello()
            assert world.controller.probe_tokens == [9, 8, 7]

    scenario(tmp_path, first)
    asyncio.run(second())


def test_the_noise_is_that_of_the_first_weights_alone() -> None:
    noise, tokens = ProbeNoise("bfloat16", {}), list(range(65))
    for version, gaps in enumerate(([0.1] * 64, [0.1] * 63 + [0.3], [0.05] * 64)):
        report = {"version": version, "probe_logprobs": [-1.0 + gap for gap in gaps]}
        kind, _ = noise.check("server/0", Probe(tokens, [-1.0] * 64), report)
    assert noise.of(kind) == pytest.approx((0.1, 0.1))
    assert ProbeNoise("bfloat16", noise.state()).of(kind) == noise.of(kind)
    assert ProbeNoise("bfloat16", {kind: [0.3, 0.1, 192]}).of(kind) is None, "of an earlier release"
