"""A run without new steps reports once what its processes wait for."""

import time

import pytest

from areal_like.process.identity import Identity
from areal_like.process.pulse import SlotSample
from launcher.agent.base import ProcessSample
from launcher.supervisor.stall_detector import FIRST_STEP_S, MEASURED_S, STALL_S, StallDetector

NOW = 1_700_000_000.0


class Log:
    """A process with some lines in its log."""

    def __init__(self, role, *lines):
        self.identity, self._lines = Identity(role, 0), list(lines)

    def last_lines(self, count):
        return self._lines[-count:]


def line(ago_s, text, level="INFO"):
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(NOW - ago_s))},123 x/0 {level} {text}"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def still(seconds, *steps_s):
    """A run that made steps that took so long, and none since."""
    clock = Clock()
    stillness = StallDetector(clock, lambda: NOW)
    for took in steps_s:
        clock.now += took
        stillness.stepped()
    clock.now += seconds
    return stillness


WAITS = Log("trainer", line(15, "step 4"))
BATCH = SlotSample(0, "waiting", 9, 0, 1, "batch 5 from rollout/0", "rollout/0", "rollout.request_timeout", 3600.0)
SAMPLES = [ProcessSample("trainer/0", "trainer-0", "S", (BATCH,), {})]


def test_a_stall_is_reported_once_with_what_each_process_waits_for():
    assert still(STALL_S - 1, 50, 1).report_lines([WAITS], SAMPLES, dict) == []
    stillness = still(STALL_S + 4, 50, 1)
    messages = stillness.report_lines([WAITS, Log("rollout")], SAMPLES, dict)
    assert messages == [
        "no step for 24 s",
        "  trainer/0 waits for batch 5 from rollout/0 (at most 3600 s, rollout.request_timeout)",
    ]
    assert stillness.report_lines([WAITS], SAMPLES, dict) == []
    stillness.stepped()
    stillness._clock.now += 1000
    assert stillness.report_lines([WAITS], SAMPLES, dict), "after a further step it is reported again"


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"trainer/0": 24.5, "server/0": 7.0}, "in the last 5 s trainer/0 (90% of a core) used the CPU"),
        ({"trainer/0": 20.0, "server/0": 7.1, "server/1": 3.0}, "in the last 5 s no process used the CPU"),
    ],
)
def test_a_stall_says_which_processes_use_the_cpu(later, words):
    stillness = still(STALL_S - MEASURED_S, 50, 1)
    assert stillness.report_lines([WAITS], SAMPLES, lambda: {"trainer/0": 20.0, "server/0": 7.0}) == []
    stillness._clock.now += MEASURED_S
    assert stillness.report_lines([WAITS], SAMPLES, lambda: later)[-1] == f"  {words}"


def test_the_first_step_and_long_steps_have_a_longer_limit():
    assert still(FIRST_STEP_S - 1).report_lines([WAITS], SAMPLES, dict) == []
    assert still(FIRST_STEP_S + 1).report_lines([WAITS], SAMPLES, dict) != []
    assert still(80, 60, 30).report_lines([WAITS], SAMPLES, dict) == []
    assert still(100, 60, 30).report_lines([WAITS], SAMPLES, dict) != []
    again = still(50, 1, 1)
    again.restarted()
    again._clock.now += 30
    assert again.report_lines([WAITS], SAMPLES, dict) == [], (
        "processes that were started again have a first step before them"
    )


@pytest.mark.parametrize("phase", ["loading", "compiling"])
def test_a_process_that_loads_or_compiles_is_no_stall(phase):
    stillness = still(1000, 50, 1)
    busy = ProcessSample("trainer/0", "trainer-0", "S", (SlotSample(0, phase, 9, 0, 1),), {})
    assert stillness.report_lines([WAITS], [busy], dict) == []
    stillness._clock.now += STALL_S + 4
    assert stillness.report_lines([WAITS], SAMPLES, dict)[0] == "no step for 24 s", "the time begins after it"


def test_the_newest_warning_is_shown_with_its_process_and_time():
    worker = Log(
        "episodes",
        line(500, "lease 1.1 failed: one thing", "WARNING"),
        line(300, "lease 2.1 failed (reward; logged once): no answer while waiting for the judge", "WARNING"),
        "Traceback (most recent call last):",
    )
    server = Log("server", line(400, "CUDA graphs are off", "WARNING"), line(5, "3 running"))
    messages = still(30, 50, 1).report_lines([worker, server, WAITS], SAMPLES, dict)
    assert messages[1].startswith("  trainer/0 waits for batch 5")
    assert messages[2:] == [
        "  the newest warning, 300 s ago, by episodes/0: lease 2.1 failed (reward; logged once): "
        "no answer while waiting for the judge"
    ]


@pytest.mark.parametrize("printed", ["2026-02-30 10:00:00", "0000-01-01 10:00:00", "2026-01-01 25:00:00"])
def test_a_printed_line_with_an_impossible_time_is_no_log_line(printed):
    log = Log("trainer", line(3, "step 4"), f"{printed},000 x ERROR y")
    messages = still(30, 50, 1).report_lines([log], [], dict)
    assert messages[1:] == ["  the newest log line, 3 s ago, by trainer/0: step 4"]


def test_without_a_wait_the_newest_log_line_is_the_reason():
    old = Log("trainer", line(200, "still waiting for batch 1 from rollout/0: 10 s of 3600 s"))
    messages = still(30, 50, 1).report_lines([old, Log("server", line(3, "12 running"))], [], dict)
    assert messages[1:] == ["  the newest log line, 3 s ago, by server/0: 12 running"]
    assert still(30, 50, 1).report_lines([Log("server", "no line of ours")], [], dict)[1:] == [
        "  the logs give no reason"
    ]
