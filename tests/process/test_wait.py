"""A wait that exceeds its limit names its condition and its key."""

import pytest

from areal_like.process.errors import TimedOut
from areal_like.process.wait import NamedWait


def test_a_wait_past_its_limit_names_its_condition_and_the_limit():
    waiting = NamedWait("batch 5 from rollout/0", 0.0, "rollout.request_timeout")
    with pytest.raises(TimedOut, match="waited 0 s for batch 5 from rollout/0; the limit is 0 s"):
        while True:
            waiting.check()
