"""Who makes no progress is named, and told from those that wait for it."""

from typing import Any

import pytest

from areal_like.process.pulse import PHASES, SlotSample
from launcher.agent.base import ProcessSample
from launcher.supervisor.hang_watch import HangWatch

LIMITS: Any = dict.fromkeys(PHASES, "auto")


def slot(phase, counter=0, collectives=0, index=0, what="", whom=""):
    return SlotSample(index, phase, counter, collectives, 1, what, whom, "a.key" if what else "", 9.0 if what else 0.0)


def process(name, *slots, state="S", work=None):
    return ProcessSample(name, name.replace("/", "-"), state, slots, work or {})


def looked(watch, samples, seconds):
    """Everything found in so many seconds, with the second of each hang."""
    notices, hangs = [], []
    for second in range(1, seconds + 1):
        look = watch.look(samples(second) if callable(samples) else samples, 1.0)
        notices += look.notices
        hangs += [(second, hang.name, hang.message) for hang in look.hangs]
    return notices, hangs


SILENT = [
    process("server/0", slot("generating")),
    process("trainer/0", slot("waiting", what="batch 5 from rollout/0", whom="rollout/0")),
]


def waiter_that_looks(second):
    return [SILENT[0], process("trainer/0", slot("waiting", second, what="batch 5 from rollout/0"))]


def test_a_silent_server_is_named_at_60_s_and_killed_at_300_s():
    notices, hangs = looked(HangWatch(60.0, LIMITS), waiter_that_looks, 310)
    assert notices == [
        "server/0 has made no progress for 60 s while generating; trainer/0 waits for batch 5 from rollout/0 "
        "(at most 9 s, a.key); it is killed after 300 s (watchdog.generating_s)"
    ]
    ((second, name, message),) = hangs
    assert 300 <= second <= 301 and name == "server/0"
    assert message.startswith("watchdog.generating_s: server/0 has made no progress for 300 s while generating")


def test_a_stopped_process_is_the_culprit_whatever_others_do():
    def samples(_second):
        return [*SILENT, process("rollout/0", slot("serving"), state="T")]

    notices, hangs = looked(HangWatch(2.0, dict.fromkeys(PHASES, 5.0)), samples, 6)
    assert [name for _, name, _ in hangs] == ["rollout/0"]
    assert notices[0].startswith("rollout/0 has made no progress for 2 s while serving (stopped by a signal);")


def test_a_stopped_process_that_waits_or_is_idle_is_found_too():
    for phase in ("waiting", "idle"):
        _, hangs = looked(HangWatch(2.0, dict.fromkeys(PHASES, 5.0)), [process("a/0", slot(phase), state="T")], 6)
        assert [(name, message.partition(":")[0]) for _, name, message in hangs] == [("a/0", "watchdog.waiting_s")]
        assert looked(HangWatch(2.0, LIMITS), [process("a/0", slot("idle"))], 900) == ([], [])


@pytest.mark.parametrize(
    ("ranks", "culprits"),
    [
        ((slot("step", 7, 3), slot("collective", 9, 4)), ["trainer/0"]),
        ((slot("collective", 9, 4), slot("collective", 9, 3)), ["trainer/1"]),
        ((slot("step", 9, 3), slot("step", 8, 3)), ["trainer/1"]),
        ((slot("collective", 9, 3), slot("collective", 9, 3)), ["trainer/0", "trainer/1"]),
        ((slot("publishing", 9, 3), slot("step", 9, 3)), ["trainer/1"]),
    ],
)
def test_of_several_ranks_the_one_that_is_behind_is_the_culprit(ranks, culprits):
    samples = [process(f"trainer/{rank}", each) for rank, each in enumerate(ranks)]
    _, hangs = looked(HangWatch(2.0, dict.fromkeys(PHASES, 5.0)), samples, 6)
    assert [name for _, name, _ in hangs] == culprits


def test_ranks_that_wait_for_one_that_makes_progress_are_not_killed():
    def samples(second):
        return [process("trainer/0", slot("saving", second)), process("trainer/1", slot("collective"))]

    assert looked(HangWatch(2.0, dict.fromkeys(PHASES, 5.0)), samples, 60) == ([], [])


def test_ranks_that_all_wait_have_the_limit_of_their_collective():
    watch = HangWatch(60.0, LIMITS, {("trainer", "collective"): 660.0})
    assert watch.limit_s("trainer/0", "collective") == 660.0
    assert watch.limit_s("trainer/0", "step") == 300.0


def test_a_wait_that_is_no_longer_looked_at_is_over():
    def samples(second):
        return [process("trainer/0", slot("waiting", min(second, 5), what="batch 5")._replace(inner="step"))]

    notices, hangs = looked(HangWatch(60.0, LIMITS), samples, 310)
    assert notices[0].startswith("trainer/0 has made no progress for 61 s while in a training step")
    assert hangs[0][2].startswith("watchdog.step_s: trainer/0"), hangs


def test_cpu_time_and_bytes_are_progress_in_a_load_and_not_in_a_step():
    def samples(phase, what):
        return lambda second: [process("a/0", slot(phase), work={0: (second * what[0], second * what[1])})]

    limits = dict.fromkeys(PHASES, 5.0)
    for what in ((1.0, 0), (0.0, 1 << 20)):
        for phase in ("loading", "compiling", "saving"):
            assert looked(HangWatch(2.0, limits), samples(phase, what), 60) == ([], [])
        assert looked(HangWatch(2.0, limits), samples("step", what), 60)[1]
    assert looked(HangWatch(2.0, limits), samples("loading", (0.001, 10)), 60)[1], "a little is none"


def test_the_limit_is_ten_times_the_longest_pause_of_the_role_in_that_phase():
    watch = HangWatch(60.0, LIMITS)
    looked(watch, lambda second: [process("trainer/0", slot("step", second // 50))], 120)
    assert watch.limit_s("trainer/1", "step") == pytest.approx(490, abs=10)
    assert watch.limit_s("trainer/1", "saving") == watch.limit_s("server/0", "step") == 300


def test_a_suspended_machine_makes_nobody_suspect():
    watch = HangWatch(60.0, LIMITS)
    assert watch.look(SILENT, 1.0) == ([], [])
    for _ in range(3):
        assert watch.look(SILENT, 3600.0) == ([], [])


def test_progress_after_a_notice_is_told_and_a_restart_begins_anew():
    watch = HangWatch(2.0, LIMITS)
    assert looked(watch, [SILENT[0]], 3)[0]
    assert watch.look([process("server/0", slot("generating", 1))], 1.0).notices == ["server/0 makes progress again"]
    assert looked(watch, [SILENT[0]], 4)[0]
    restarted = SILENT[0]._replace(start="server-0.restart-2")
    assert watch.look([restarted], 1.0).hangs == []


def test_who_depended_on_the_culprit_has_its_full_time_afterwards():
    samples = [process("server/0", slot("generating"), state="T"), process("trainer/0", slot("publishing"))]
    watch = HangWatch(2.0, dict.fromkeys(PHASES, 5.0))
    assert [name for _, name, _ in looked(watch, samples, 5)[1]] == ["server/0"]
    ended = [samples[1]]
    assert looked(watch, ended, 4)[1] == []
    assert [name for _, name, _ in looked(watch, ended, 3)[1]] == ["trainer/0"]


def test_a_rollback_knows_which_servers_are_silent():
    watch = HangWatch(2.0, LIMITS)
    looked(watch, waiter_that_looks, 3)
    assert list(watch.silent(waiter_that_looks(4))) == ["server/0"]
