"""An engine that answers and has no requests, counts further tokens or answers a request, makes progress; one that
hangs does not."""

import asyncio
import itertools
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.sections.watchdog import WatchdogConfig
from areal_like.process import pulse
from areal_like.process.errors import Failure
from areal_like.serving.engines import engine_pulse as engine_pulse_module
from areal_like.serving.engines.base import GenerateOutput, GenerateRequest
from areal_like.serving.engines.engine_pulse import (
    EngineWatch,
    Load,
    Silence,
    attached_watch,
    engine_pulse,
)
from tests.support.external_server import TinyEngine, group, running

IDLE = Load(is_frozen=False, requests=0, asked=0, answered=0)
ASKED = IDLE._replace(requests=2, asked=2)


def goes_on(before: dict[str, Any] | None, now: dict[str, Any] | None, load: Load, load_before: Load = IDLE) -> bool:
    watch = EngineWatch()
    watch.goes_on(before, load_before)
    return watch.goes_on(now, load)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"running": 2, "generated_tokens": 5}, {"running": 2, "generated_tokens": 6}, True),
        ({"running": 2, "generated_tokens": 5}, {"running": 2, "generated_tokens": 5}, False),
        ({"waiting": 1, "running": 0, "tokens": 5}, {"waiting": 1, "running": 0, "tokens": 5}, False),
        ({"running": 0, "generated_tokens": 5}, {"running": 0, "generated_tokens": 5}, True),
        ({"running": 0, "generated_tokens": 5}, None, False),
    ],
)
def test_progress_of_an_engine_that_counts_tokens(before: Any, now: Any, expected: bool) -> None:
    assert goes_on(before, now, IDLE) is expected


def test_an_engine_that_was_given_requests_and_counts_none_makes_no_progress() -> None:
    idle = {"running": 0, "waiting": 0, "generated_tokens": 5}
    assert not goes_on(idle, idle, ASKED)
    assert goes_on(idle, idle, ASKED._replace(is_frozen=True))
    assert goes_on(idle, idle | {"generated_tokens": 6}, ASKED)


def test_an_engine_that_counts_no_tokens_makes_progress_by_answers_alone() -> None:
    one, two = {"running": 1, "waiting": 0}, {"running": 2, "waiting": 0}
    assert not goes_on(one, two, ASKED), "a further request is none"
    assert goes_on(two, two, ASKED._replace(answered=1))
    assert goes_on(two, two, IDLE) and goes_on(two, two, ASKED._replace(is_frozen=True))
    assert not goes_on({}, {}, ASKED)


def test_a_server_counts_what_its_engine_was_asked_and_has_answered(tmp_path: Path) -> None:
    async def main() -> None:
        engine, ends = TinyEngine(), asyncio.Event()
        answer = engine.generate

        async def hangs(request: GenerateRequest) -> list[GenerateOutput]:
            await ends.wait()
            return await answer(request)

        engine.generate = hangs  # type: ignore[method-assign]
        async with running(tmp_path, engine) as client:
            client.server.served.mark_verified()
            asking = asyncio.create_task(client.generate(group("g")))
            while client.server.load() != Load(False, 1, 1, 0):
                await asyncio.sleep(0.01)
            ends.set()
            await asking
            assert client.server.load() == Load(False, 0, 0, 1)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The memory of this process's pulse, as the launcher made it."""
    descriptor = os.memfd_create("pulse")
    os.ftruncate(descriptor, pulse.PAGE_BYTES)
    page = mmap.mmap(descriptor, pulse.PAGE_BYTES)
    monkeypatch.setenv(pulse.PULSE_FD, str(descriptor))
    pulse.open_pulse()
    yield page
    pulse.close_pulse()


@pytest.mark.parametrize("counts", [{}, {"generated_tokens": 5}])
def test_the_slot_of_an_engine_is_still_while_it_owes_an_answer(
    counts: dict[str, int], page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pulse_module, "POLL_S", 0.0)
    loads = [ASKED]
    calls = [0]

    class Engine:
        async def statistics(self) -> dict[str, Any]:
            calls[0] += 1
            return {"running": 2, "waiting": 0} | counts

    async def looked() -> int:
        """The counter, after the engine was asked a few times more."""
        enough = calls[0] + 5
        while calls[0] < enough:
            await asyncio.sleep(0)
        (slot,) = pulse.read_slots(page)
        assert slot.phase == pulse.GENERATING and bool(slot.thread) is bool(counts), "else the process computes"
        return slot.counter

    async def main() -> None:
        engine: Any = Engine()
        async with engine_pulse(engine, lambda: loads[-1], in_process=False):
            before = await looked()
            assert await looked() == before
            loads.append(ASKED._replace(answered=1))
            assert await looked() == before + 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_engine_whose_statistics_raise_is_asked_again_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_pulse_module, "POLL_S", 0.0)
    asked = asyncio.Event()

    class Engine:
        calls = 0

        async def statistics(self) -> dict[str, Any]:
            self.calls += 1
            if self.calls > 3:
                asked.set()
            raise TypeError("no such counter")

    async def main() -> None:
        engine: Any = Engine()
        async with engine_pulse(engine, lambda: IDLE, in_process=True):
            await asyncio.wait_for(asked.wait(), 60)

    asyncio.run(main())
    assert len(caplog.records) == 1 and "TypeError: no such counter" in caplog.text


def test_an_attached_engine_that_owes_answers_for_too_long_ends_its_server_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_pulse_module, "POLL_S", 0.0)
    monkeypatch.setattr(engine_pulse_module, "time", SimpleNamespace(monotonic=itertools.count().__next__))

    class Engine:
        asked = 0

        async def statistics(self) -> dict[str, Any]:
            self.asked += 1
            counted = {} if self.asked < 20 else {"generated_tokens": 5}
            return {"running": 1, "waiting": 0} | counted

    async def main() -> str:
        engine: Any = Engine()
        section: Any = WatchdogConfig
        limits = section(notice_s=3.0, generating_s=10.0)
        ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        end = lambda failure: None if ended.done() else ended.set_result(failure)  # noqa: E731
        async with attached_watch(engine, lambda: ASKED, "vLLM at there:1", limits, end):
            message = str(await ended)
            assert engine.asked >= 20, "one that counts no tokens may only be slow"
            return message

    message = asyncio.run(asyncio.wait_for(main(), 60))
    silent = "vLLM at there:1 (rollout.server_addresses) has requests and has made no progress for"
    assert message.startswith(f"watchdog.generating_s: {silent} 10 s; a run does not end servers")
    (notice,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert notice == f"{silent} 3 s; this process ends after 10 s (watchdog.generating_s)"


def test_the_limit_of_an_attached_engine_is_that_of_engines_that_are_killed() -> None:
    default, never = Silence("auto"), Silence(None)
    looks = [(default.look(False, 2.0), never.look(False, 2.0)) for _ in range(150)]
    assert looks == [(False, False)] * 149 + [(True, False)]
    assert not default.look(True, 2.0) and default.limit_s == 3000, "ten times its longest pause"
    stopped = Silence(100.0)
    assert not stopped.look(False, 3600.0), "this process was stopped"
    assert not stopped.look(True, 2.0) and stopped.seconds == 0


def test_an_engine_that_does_not_end_requests_for_a_pause_owes_them(tmp_path: Path) -> None:
    async def main() -> None:
        engine = TinyEngine()

        async def hangs(request: GenerateRequest) -> list[GenerateOutput]:
            await asyncio.sleep(60)
            return []

        engine.generate = hangs  # type: ignore[method-assign]
        async with running(tmp_path, engine) as client:
            client.server.served.mark_verified()
            asking = asyncio.create_task(client.generate(group("g")))
            while not client.server.load().asked:
                await asyncio.sleep(0.01)
            pausing = asyncio.create_task(client.call("POST", "/control/pause", {"mode": "abort"}))
            while not client.server.pauser.is_paused:
                await asyncio.sleep(0.01)
            assert client.server.load() == Load(is_frozen=False, requests=1, asked=1, answered=0)
            for task in (asking, pausing):
                task.cancel()
            await asyncio.gather(asking, pausing, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 60))
