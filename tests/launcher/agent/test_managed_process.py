"""Names of the log files of processes."""

import pytest

from areal_like.process.identity import Identity
from launcher.agent.managed_process import log_name


@pytest.mark.parametrize(
    ("me", "name"),
    [
        (Identity("trainer", 0), "trainer-0.log"),
        (Identity("trainer", 0, attempt=2), "trainer-0.attempt-2.log"),
        (Identity("server", 1, incarnation=3), "server-1.restart-3.log"),
        (Identity("server", 1, attempt=2, incarnation=2), "server-1.attempt-2.restart-2.log"),
    ],
)
def test_every_start_has_a_separate_log_file(me, name):
    assert log_name(me) == name
