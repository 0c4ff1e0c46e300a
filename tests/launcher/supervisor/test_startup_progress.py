"""Processes that are not ready are reported every half minute; a usual start reports nothing."""

from areal_like.process.identity import Identity
from launcher.supervisor.startup_progress import REPORT_INTERVAL_S, StartupProgress

LIMIT = "300 s, rollout.setup_timeout"


class Child:
    def __init__(self, *lines, age_s=0.0):
        self.identity, self.age_s, self._lines = Identity("server", 0), age_s, list(lines)

    def last_lines(self, count):
        return self._lines[-count:]


def words_at(ages, *lines):
    """The report at each age of one server."""
    now = 0.0
    awaited = StartupProgress(LIMIT, lambda: now)
    message = []
    for now in ages:
        message.append(awaited.report_lines([Child(*lines, age_s=now)]))
    return message


def test_a_start_of_the_usual_length_prints_nothing():
    assert words_at([5, 10, 20, REPORT_INTERVAL_S - 1], "loading") == [[]] * 4


def test_a_longer_start_prints_what_it_waits_for_at_intervals():
    message = words_at(range(0, 100), "loading")
    assert [second for second, lines in enumerate(message) if lines] == [30, 60, 90]
    assert message[30] == [f"  waiting for server/0 (30 s of {LIMIT}): loading"]


def test_a_restarted_process_has_a_new_time_limit():
    awaited = StartupProgress(LIMIT, lambda: 500.0)
    assert awaited.report_lines([Child("loading", age_s=2.0)]) == []


def test_a_warning_of_an_engine_is_not_shown():
    warnings = [
        "(EngineCore pid=7) WARNING 11-22 16:01:02 [cpu.py:1] no NUMA nodes",
        "[2026-11-22 16:01:02] WARNING server.py:3: falling back",
        "2026-11-22 16:01:02,000 server/0 WARNING slow disk",
        "/lib/x.py:3: UserWarning: old",
        "  warnings.warn(",
    ]
    assert words_at([40], "INFO loading", *warnings) == [[f"  waiting for server/0 (40 s of {LIMIT}): INFO loading"]]
    assert words_at([40], *warnings) == [[f"  waiting for server/0 (40 s of {LIMIT})"]]
    assert words_at([40]) == [[f"  waiting for server/0 (40 s of {LIMIT}): nothing in its log yet"]]
