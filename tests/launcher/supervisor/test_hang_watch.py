"""Who makes no progress is named, and those that wait for it are not."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.experiment import GRPOConfig
from areal_like.process.identity import Identity
from areal_like.process.pulse import PHASES, SlotSample
from launcher.agent.base import ProcessSample
from launcher.supervisor import watchdog
from launcher.supervisor.hang_log import HangLog
from launcher.supervisor.hang_watch import HangWatch
from launcher.supervisor.roster import RunningProcess
from launcher.supervisor.watchdog import hang_watch

LIMITS: Any = dict.fromkeys(PHASES, "auto")
CONFIG: Any = GRPOConfig
WATCHDOG: Any = watchdog.Watchdog


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


def test_ranks_that_wait_for_each_other_do_so_since_the_last_one_came():
    def samples(second):
        late = slot("loading", second) if second < 60 else slot("collective", 60, 1)
        return [process("trainer/0", late), process("trainer/1", slot("collective", 60, 1))]

    notices, hangs = looked(HangWatch(5.0, dict.fromkeys(PHASES, 20.0)), samples, 90)
    assert [line.partition(" while")[0] for line in notices] == [
        f"trainer/{rank} has made no progress for 5 s" for rank in (0, 1)
    ]
    assert [(second, name) for second, name, _ in hangs] == [(80, "trainer/0"), (80, "trainer/1")]


def computing(second, *ranks):
    return [process(f"trainer/{rank}", each, work={0: (second, 0)}) for rank, each in enumerate(ranks)]


def test_a_rank_that_keeps_another_waiting_is_killed_before_that_one_gives_up_however_much_it_computes():
    config = CONFIG()
    for phase, doing in (("step", "made no progress for 540 s while in a"), ("loading", "computed for 540 s while")):
        behind, waits = slot(phase, 7, 3), slot("collective", 8, 4)
        watch = hang_watch(config)
        notices, hangs = looked(watch, lambda second, both=(behind, waits): computing(second, *both), 599)
        ((second, name, message),) = hangs
        assert name == "trainer/0" and second == 541 < config.actor.dist_timeout_s
        assert message.startswith(f"watchdog.{phase}_s: trainer/0 has {doing}")
        assert "; trainer/1 has waited for it for 540 s, and gives up after dist_timeout_s" in message
        assert [each.partition(" ")[0] for each in notices] == ["trainer/0"]


@pytest.mark.parametrize("looping", [slot("step", 7, 3), slot("step", 8, 3)])
def test_a_rank_that_waits_in_the_passes_of_a_step_is_not_killed_for_one_that_computes_without_end(looping):
    """The parts of a sharded model are gathered in them. The other one is before, or in the same part."""

    def samples(second):
        return [process("trainer/0", slot("step", 8, 3)), process("trainer/1", looping, work={0: (second, 0)})]

    notices, hangs = looked(hang_watch(CONFIG()), samples, 599)
    assert [(second, name) for second, name, _ in hangs] == [(541, "trainer/1")]
    assert "; trainer/0 has waited for it for 540 s, and gives up after dist_timeout_s" in hangs[0][2]
    assert [each.partition(" ")[0] for each in notices] == ["trainer/1"]


def test_of_ranks_that_are_silent_in_a_step_the_one_that_is_not_as_far_is_killed():
    behind = [process("trainer/0", slot("step", 8, 3)), process("trainer/1", slot("step", 7, 3))]
    assert [name for _, name, _ in looked(hang_watch(CONFIG()), behind, 310)[1]] == ["trainer/1"]
    both = [process(f"trainer/{rank}", slot("step", 8, 3)) for rank in (0, 1)]
    assert [name for _, name, _ in looked(hang_watch(CONFIG()), both, 310)[1]] == ["trainer/0", "trainer/1"]


@pytest.mark.parametrize("phase", ["waiting", "collective", "publishing", "step"])
def test_a_stopped_rank_is_killed_before_another_one_gives_up_whatever_it_did(phase):
    config = CONFIG()
    config.actor.dist_timeout_s = 120
    samples = [process("trainer/0", slot("collective", 1, 4)), process("trainer/1", slot(phase, 1, 3), state="T")]
    _, hangs = looked(hang_watch(config), samples, 119)
    assert [name for _, name, _ in hangs] == ["trainer/1"]


def test_ranks_that_all_compute_or_are_never_killed_keep_their_time():
    config = CONFIG()
    _, hangs = looked(hang_watch(config), lambda second: computing(second, slot("step"), slot("step")), 3000)
    assert hangs == []
    never = CONFIG()
    never.watchdog.step_s = None
    kept = hang_watch(never)
    assert looked(kept, lambda second: computing(second, slot("step"), slot("collective")), 3000)[1] == []
    late = hang_watch(config)
    assert looked(late, lambda s: computing(s, slot("step", s // 50), slot("collective")), 599)[1] == []
    config.actor.dist_timeout_s = 80
    _, hangs = looked(hang_watch(config), lambda second: computing(second, slot("step"), slot("collective")), 79)
    assert [name for _, name, _ in hangs] == ["trainer/0"], "also where it gives up soon"


def test_ranks_that_all_wait_have_the_limit_of_their_collective():
    watch = HangWatch(60.0, LIMITS, {("trainer", "collective"): 660.0})
    assert watch.limit_s("trainer/0", "collective") == 660.0
    assert watch.limit_s("trainer/0", "step") == 300.0


def test_a_server_waits_for_weights_that_a_trainer_still_sends_and_is_the_culprit_when_its_own_update_hangs():
    def sending(second):
        return [process("server/0", slot("updating")), process("trainer/0", slot("publishing", second))]

    def waiting(second):
        return [process("server/0", slot("updating")), process("trainer/0", slot("waiting", second, what="weights"))]

    limits = dict.fromkeys(PHASES, 5.0)
    assert looked(HangWatch(2.0, limits), sending, 60) == ([], [])
    notices, hangs = looked(HangWatch(2.0, limits), waiting, 6)
    assert [name for _, name, _ in hangs] == ["server/0"]
    assert notices[0].startswith("server/0 has made no progress for 2 s while updating its weights; trainer/0 waits")


def test_an_update_goes_on_while_much_is_read_and_not_while_its_engine_is_only_asked_what_it_does():
    def reading(rate, cpu_s=0.0):
        return lambda second: [process("server/0", slot("updating"), work={0: (second * cpu_s, second * rate)})]

    limits = dict.fromkeys(PHASES, 30.0)
    assert looked(HangWatch(20.0, limits), reading(10 << 20), 120) == ([], [])
    assert [name for _, name, _ in looked(HangWatch(20.0, limits), reading(20 << 10), 40)[1]] == ["server/0"]
    assert looked(HangWatch(20.0, limits), reading(10 << 20, cpu_s=0.9), 120) == ([], []), "beside generation"


def test_of_a_server_and_a_trainer_that_hang_together_in_a_transfer_the_server_is_replaced_first():
    limits = dict.fromkeys(PHASES, 5.0)
    both = [process("server/0", slot("updating")), process("trainer/0", slot("publishing"))]
    watch = HangWatch(2.0, limits)
    assert [name for _, name, _ in looked(watch, both, 7)[1]] == ["server/0"]
    assert [name for _, name, _ in looked(watch, [both[1]], 12)[1]] == ["trainer/0"], "if it hangs on"


def test_a_wait_that_is_no_longer_looked_at_is_over():
    def samples(second):
        return [process("trainer/0", slot("waiting", min(second, 5), what="batch 5")._replace(inner="step"))]

    notices, hangs = looked(HangWatch(60.0, LIMITS), samples, 310)
    assert notices[0].startswith("trainer/0 has made no progress for 61 s while in a training step")
    assert hangs[0][2].startswith("watchdog.step_s: trainer/0"), hangs


def working(phase, cpu_s, size=0):
    """One that uses so much each second and gives no other sign of progress."""
    return lambda second: [process("a/0", slot(phase), work={0: (second * cpu_s, second * size)})]


def test_cpu_time_and_bytes_are_progress_in_a_load_and_not_in_a_step():
    limits = dict.fromkeys(PHASES, 5.0)
    for what, seconds in (((1.0, 0), 5), ((0.0, 1 << 20), 200), ((1.0, 100 << 10), 200)):
        for phase in ("loading", "compiling", "saving"):
            watch = HangWatch(2.0, limits | {phase: 15.0})
            assert looked(watch, working(phase, *what), seconds) == ([], [])
        assert looked(HangWatch(2.0, limits), working("step", *what), 60)[1]
    assert looked(HangWatch(2.0, limits), working("loading", 0.001, 10), 60)[1], "a little is none"


def test_one_that_only_computes_while_it_loads_is_named_at_its_limit_and_killed_at_twelve_times_that():
    for phase in ("loading", "compiling", "publishing", "saving"):
        notices, hangs = looked(HangWatch(60.0, LIMITS), working(phase, 1.0), 301)
        text = f"while {phase}, without any other sign of progress"
        limit = f"it is killed after 3600 s (watchdog.{phase}_s)"
        assert (notices, hangs) == ([f"a/0 has computed for 300 s {text}; {limit}"], [])
        notices, hangs = looked(watch := HangWatch(60.0, LIMITS), working(phase, 1.0), 3601)
        assert len(notices) == 1
        assert hangs == [(3601, "a/0", f"watchdog.{phase}_s: a/0 has computed for 3600 s {text}")]
        assert list(watch.silent(working(phase, 1.0)(3601))) == ["a/0"]
        _, hangs = looked(HangWatch(2.0, LIMITS | {phase: 5.0}), working(phase, 1.0), 70)
        assert [second for second, _, _ in hangs] == [61], "a limit that was set"
        assert looked(HangWatch(2.0, LIMITS | {phase: None}), working(phase, 1.0), 5000) == ([], [])


def test_one_that_computes_while_it_loads_goes_on_until_its_limit_and_hangs_as_others_do():
    watch, loads = HangWatch(60.0, LIMITS), working("loading", 1.0)
    looked(watch, loads, 1000)
    assert watch.silent(loads(1000), ["a/0"]) == {}, "it is late, but makes progress"
    notices, _ = looked(watch, lambda _: [process("a/0", slot("loading", 1), work={0: (1001.0, 0)})], 1)
    assert notices == ["a/0 makes progress again"]
    _, hangs = looked(HangWatch(60.0, LIMITS), lambda second: loads(min(second, 1000)), 1302)
    assert [(second, "has made no progress for 300 s" in text) for second, _, text in hangs] == [(1300, True)]
    floors = {("a", "loading"): 5000.0}
    assert HangWatch(60.0, LIMITS, floors).busy_limit_s("a/0", "loading") == 5000
    watch = HangWatch(60.0, LIMITS)
    watch._killed["a", "loading"] = 3
    assert watch.limit_s("a/0", "loading") == 2400 and watch.busy_limit_s("a/0", "loading") == 3600


def test_one_that_computes_while_it_loads_hides_no_other():
    def samples(second):
        return [*working("loading", 1.0)(second), process("trainer/0", slot("publishing", min(second, 400)))]

    _, hangs = looked(HangWatch(60.0, LIMITS), samples, 900)
    assert [name for _, name, _ in hangs] == ["trainer/0"]


def test_bytes_of_children_that_have_ended_are_not_asked_for_again():
    def samples(second):
        size = second << 20 if second < 100 else (second - 100) << 20
        return [process("a/0", slot("loading"), work={0: (second, size)})]

    assert looked(HangWatch(2.0, LIMITS | {"loading": 10.0}), samples, 200) == ([], [])


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


def test_a_rollback_knows_which_servers_are_stopped_or_past_their_limit():
    watch = HangWatch(60.0, LIMITS)
    slow, stopped = SILENT[0], process("server/1", slot("serving"), state="T")
    looked(watch, [slow], 200)
    looked(watch, [slow, stopped], 59)
    assert watch.silent([slow, stopped]) == {}, "an innocent one may only be slow"
    looked(watch, [slow, stopped], 2)
    assert {name: start for name, (start, _) in watch.silent([slow, stopped]).items()} == {"server/1": "server-1"}
    looked(watch, [slow, stopped], 60)
    assert list(watch.silent([slow, stopped])) == ["server/0", "server/1"]


def hung(watch, samples, seconds):
    """The first that are found in so many seconds."""
    return next((hangs for _ in range(seconds) if (hangs := watch.look(samples, 1.0).hangs)), [])


def test_who_goes_on_or_was_replaced_before_the_kill_is_spared_and_watched_again():
    limits = dict.fromkeys(PHASES, 5.0)
    for state in ("S", "T"):
        silent = process("server/0", slot("generating", 1), state=state)
        watch = HangWatch(2.0, limits)
        hangs = hung(watch, [silent], 6)
        assert watch.confirmed(hangs, [silent]) == hangs and [each.start for each in hangs] == ["server-0"]
        watch = HangWatch(2.0, limits)
        hangs = hung(watch, [silent], 6)
        assert watch.confirmed(hangs, [silent._replace(start="server-0.restart-2")]) == []
        watch = HangWatch(2.0, limits)
        hangs = hung(watch, [silent], 6)
        goes_on = process("server/0", slot("generating", 2))
        assert watch.confirmed(hangs, [goes_on]) == []
        assert [each.name for each in hung(watch, [goes_on], 6)] == ["server/0"], "later it hangs again"


def test_one_that_computes_in_a_step_has_an_hour_by_default():
    def computes(second):
        return [process("trainer/0", slot("step"), work={0: (second * 0.5, 0)})]

    notices, hangs = looked(HangWatch(60.0, LIMITS), computes, 3601)
    assert "in a training step (it computes); it is killed after 3600 s" in notices[0]
    assert [second for second, _, _ in hangs] == [3601], "an endless loop computes, too"
    assert looked(HangWatch(60.0, LIMITS | {"step": 300.0}), computes, 302)[1], "a limit that was set is kept"
    _, hangs = looked(HangWatch(60.0, LIMITS), lambda second: computes(min(second, 1000)), 1302)
    assert [second for second, _, _ in hangs] == [1300], "then it waits for something"
    polls = [process("server/0", slot("generating"), work={0: (0.0, 0)})]
    _, hangs = looked(HangWatch(60.0, LIMITS), lambda s: [polls[0]._replace(work={0: (0.01 * s, 0)})], 302)
    assert hangs, "who only looks again and again does not compute"


def test_a_kill_doubles_the_default_limit_but_not_that_of_one_that_was_stopped():
    watch, silent = HangWatch(60.0, LIMITS), process("trainer/0", slot("step"))
    for attempt, limit_s in enumerate((300, 600, 1200, 2400, 3600, 3600)):
        assert watch.limit_s("trainer/0", "step") == limit_s
        again = [silent._replace(start=f"trainer-0.{attempt}")]
        assert watch.confirmed(hung(watch, again, limit_s + 2), again)
    assert watch.limit_s("trainer/0", "saving") == watch.limit_s("server/0", "step") == 300
    watch, stopped = HangWatch(60.0, LIMITS), [silent._replace(state="T")]
    assert watch.confirmed(hung(watch, stopped, 302), stopped)
    assert watch.limit_s("trainer/0", "step") == 300


def test_null_is_never():
    for state in ("S", "T"):
        samples = [process("a/0", slot("step"), state=state)]
        notices, hangs = looked(HangWatch(60.0, LIMITS | {"step": None}), samples, 5000)
        assert hangs == [] and [each.rpartition("; ")[2] for each in notices] == ["it is not killed (watchdog.step_s)"]


def test_a_little_cpu_time_adds_up_to_progress_in_a_load():
    def loads(second):
        return [process("server/0", slot("loading"), work={0: (0.04 * second, 0)})]

    assert looked(HangWatch(60.0, LIMITS), loads, 300) == ([], [])


def test_the_time_while_a_signal_stops_a_process_is_no_pause_of_its_own():
    watch = HangWatch(300.0, LIMITS)
    assert looked(watch, [process("trainer/0", slot("step"), state="T")], 250) == ([], [])
    assert looked(watch, lambda second: [process("trainer/0", slot("step", second))], 10) == ([], [])
    assert watch.limit_s("trainer/0", "step") == 300


def test_looks_of_a_wait_do_not_put_a_rank_ahead():
    ahead = process("trainer/0", slot("step", 8, 3))
    waited = process("trainer/1", slot("step", 7, 3)._replace(waits=50))
    _, hangs = looked(HangWatch(2.0, dict.fromkeys(PHASES, 5.0)), [ahead, waited], 6)
    assert [name for _, name, _ in hangs] == ["trainer/1"]


def test_who_is_late_and_silent_for_the_time_of_a_notice_has_had_enough_unless_it_waits_for_another():
    for phase, found in (("loading", ["server/0"]), ("waiting", [])):
        late, watch = process("server/0", slot(phase)), HangWatch(60.0, LIMITS)
        looked(watch, [late], 59)
        assert list(watch.silent([late], ["server/0"])) == []
        looked(watch, [late], 2)
        assert list(watch.silent([late], ["server/0"])) == found and list(watch.silent([late])) == []
    never = HangWatch(60.0, LIMITS | {"loading": None})
    looked(never, [process("server/0", slot("loading"))], 100)
    assert list(never.silent([process("server/0", slot("loading"))], ["server/0"])) == []


class Machine:
    """An agent whose processes do what the test says."""

    def __init__(self):
        self.shown, self.killed, self.reports, self.culprits, self.is_done = [], [], [], [], False

    def samples(self):
        return self.shown

    def begin_hang_report(self, folder, culprits):
        self.reports.append(folder)
        self.culprits += culprits

    def hang_report_is_done(self):
        return self.is_done

    def kill_hung(self, name, start, message):
        self.killed.append((name, start))

    def dump_stacks(self):
        self.reports.append("stacks")


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A machine, what its watchdog says, a function by which seconds pass, and the watchdog."""
    clock, machine = [0.0], Machine()
    reported: list[str] = []
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    config = CONFIG()
    for phase in PHASES[:-1]:
        setattr(config.watchdog, f"{phase}_s", 5.0)
    made = WATCHDOG(SimpleNamespace(logs=tmp_path / "logs", config=config), machine, reported.append)

    def passes(seconds):
        for _ in range(seconds):
            clock[0] += 1.0
            made.poll()

    return machine, reported, passes, made


def test_a_second_hang_during_the_report_of_the_first_is_found_later(watched):
    machine, _, passes, _ = watched
    first, second = process("server/0", slot("generating")), process("server/1", slot("generating"))
    machine.shown = [first]
    passes(6)
    machine.shown = [first, second]
    passes(15)
    assert machine.killed == [] and len(machine.reports) == 1
    machine.is_done = True
    passes(1)
    assert machine.killed == [("server/0", "server-0")]
    machine.shown = [second]
    passes(10)
    assert machine.killed[1:] == [("server/1", "server-1")] and len(machine.reports) == 2


def test_a_killed_process_that_does_not_die_is_said_once_and_ends_the_run_after_the_grace_of_a_stop(watched):
    machine, reported, passes, made = watched
    machine.is_done, machine.shown = True, [process("server/0", slot("generating"), state="D")]
    passes(60)
    assert machine.killed == [("server/0", "server-0")]
    (line,) = [each for each in reported if "cannot be ended" in each]
    assert line.startswith("server/0 was killed but cannot be ended: it hangs in the kernel (state D)")
    assert "the run waits at most 240 s more for its end (recover.grace_s)" in line
    passes(190)
    endings = [made.ending]
    passes(10)
    endings.append(made.ending)
    assert endings[0] is None and endings[1][:2] == ("failed", 1)
    assert endings[1].message.startswith("recover.grace_s: server/0 was killed but cannot be ended")
    assert "(state D)" in endings[1].message


def test_one_that_is_late_and_makes_no_progress_is_killed_once_and_only_others_are_returned(watched):
    machine, _, passes, made = watched
    machine.shown = [process("server/0", slot("loading")), process("server/1", slot("loading"))]
    made._watch._notice_s, made._watch._limits = 2.0, LIMITS
    late = [RunningProcess(Identity("server", index), "", machine) for index in (0, 1)]
    for second in range(8):
        machine.shown[1] = process("server/1", slot("loading", second))
        passes(1)
        assert second < 5 or made.kill_late(late, "it was not ready") == late[1:]
    assert machine.killed == [("server/0", "server-0")]


def test_one_that_others_killed_and_that_does_not_die_ends_the_run_as_well(watched):
    machine, reported, passes, made = watched
    machine.shown = [process("trainer/1", slot("step"), state="D")]
    assert not made.still_alive(["trainer/0"]) and made.still_alive(["trainer/0", "trainer/1"])
    passes(60)
    assert [line.partition(":")[0] for line in reported] == ["trainer/1 was killed but cannot be ended"]
    endings = [made.ending]
    for _ in range(10):
        assert made.still_alive(["trainer/1"])
        passes(20)
    endings.append(made.ending)
    assert machine.killed == [] and endings[0] is None
    assert endings[1].message.startswith("recover.grace_s: trainer/1 was killed but cannot be ended")
    machine.shown = []
    assert not made.still_alive(["trainer/1"])


def test_a_killed_process_that_dies_late_does_not_end_the_run(watched):
    machine, _, passes, made = watched
    machine.is_done, machine.shown = True, [process("server/0", slot("generating"), state="D")]
    passes(200)
    machine.shown = []
    passes(200)
    assert made.ending is None


def test_who_was_named_or_killed_and_why_is_in_files(watched, tmp_path):
    machine, reported, passes, made = watched
    machine.shown = [process("server/0", slot("generating"), state="T")]
    passes(61)
    machine.is_done = True
    passes(1)
    made.close()
    message = "watchdog.generating_s: server/0 has made no progress for 5 s while generating (stopped by a signal)"
    assert machine.culprits == [message]
    lines = (tmp_path / "logs" / "hangs.log").read_text().splitlines()
    notice, kill = (line.split(" ", 2)[2] for line in lines)
    assert notice == reported[0] and notice.endswith("it is killed after 5 s (watchdog.generating_s)")
    assert kill == f"server/0 is killed: {message}; stacks: logs/hang-1"
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)


def test_the_log_of_hangs_is_bounded(tmp_path):
    log = HangLog(tmp_path, 100)
    for number in range(20):
        log.add(f"server/{number} has made no progress")
        log.close()
    assert {path.name for path in tmp_path.iterdir()} == {"hangs.log", "hangs.log.1"}
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 200
    assert (tmp_path / "hangs.log").read_text().endswith("server/19 has made no progress\n")
