"""An engine that answers and has no requests, or counts further tokens, makes progress; one that hangs does not."""

import pytest

from areal_like.serving.engines.external.engine_pulse import makes_progress


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
