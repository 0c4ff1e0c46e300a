"""An engine that answers and has no requests, or counts further tokens, makes progress; one that hangs does not."""

import asyncio
from typing import Any

import pytest

from areal_like.serving.engines.external import engine_pulse as engine_pulse_module
from areal_like.serving.engines.external.engine_pulse import engine_pulse, makes_progress


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"running": 2, "generated_tokens": 5}, {"running": 2, "generated_tokens": 6}, True),
        ({"running": 2, "generated_tokens": 5}, {"running": 2, "generated_tokens": 5}, False),
        (
            {"waiting": 1, "running": 0, "generated_tokens": 5},
            {"waiting": 1, "running": 0, "generated_tokens": 5},
            False,
        ),
        ({"running": 0, "generated_tokens": 5}, {"running": 0, "generated_tokens": 5}, True),
        ({"running": 2, "waiting": 0}, {"running": 2, "waiting": 0}, True),
    ],
)
def test_progress_of_an_engine(before, now, expected):
    assert makes_progress(before, now) is expected


def test_an_engine_that_was_given_requests_and_counts_none_makes_no_progress():
    idle = {"running": 0, "waiting": 0, "generated_tokens": 5}
    assert makes_progress(idle, idle, has_requests=False)
    assert not makes_progress(idle, idle, has_requests=True)
    assert makes_progress(idle, idle | {"generated_tokens": 6}, has_requests=True)


def test_an_engine_whose_statistics_raise_is_asked_again_and_named_once(monkeypatch, caplog):
    monkeypatch.setattr(engine_pulse_module, "POLL_S", 0.0)
    monkeypatch.setattr(engine_pulse_module, "LimitedEngine", lambda engine: engine)
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
        async with engine_pulse(engine, lambda: False, lambda: False):
            await asyncio.wait_for(asked.wait(), 60)

    asyncio.run(main())
    assert len(caplog.records) == 1 and "TypeError: no such counter" in caplog.text
