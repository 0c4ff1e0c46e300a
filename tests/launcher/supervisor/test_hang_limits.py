"""Who waits for a process that hangs lasts longer than the limits of the watchdog."""

import math
from functools import reduce
from typing import Any

import pytest

from areal_like.config.experiment import GRPOConfig
from areal_like.process.patience import MARGIN_S, PHASES_OF, WORKING, patience_s
from launcher.supervisor.watchdog import hang_watch

CONFIG: Any = GRPOConfig


def changed(**keys):
    config = CONFIG()
    for dotted, value in keys.items():
        *folders, key = dotted.split("__")
        setattr(reduce(getattr, folders, config), key, value)
    return config


@pytest.mark.parametrize(
    "config",
    [
        changed(),
        changed(rollout__setup_timeout=5000.0),
        changed(actor__weight_update_mode="collective", weights__broadcast__timeout_s=9000),
        changed(watchdog__serving_s=40.0, rollout__setup_timeout=20.0),
        changed(watchdog__generating_s=9000.0, watchdog__loading_s=9000.0),
    ],
)
def test_who_waits_for_a_process_that_hangs_lasts_until_its_successor_is_ready(config):
    for role, phases in PHASES_OF.items():
        for phase in phases:
            patient_s = patience_s(config, role) - config.rollout.setup_timeout
            assert patient_s > config.rollout.setup_timeout, "who is not ready in time is killed, too"
            for kills in (0, 1, 5):
                watch = hang_watch(config)
                watch._killed[role, phase] = kills
                watch._longest[role, phase] = 1000.0
                limits = [watch.limit_s(f"{role}/0", phase, is_stopped=stopped) for stopped in (False, True)]
                limits += [watch.busy_limit_s(f"{role}/0", phase)] if phase in WORKING else []
                assert max(limits) < patient_s, f"{role} {phase}, after {kills} kills"


def test_by_default_who_hangs_is_killed_before_any_wait_for_its_answer_ends():
    config = CONFIG()
    watch = hang_watch(config)
    for role, phases in PHASES_OF.items():
        for phase in phases:
            assert watch.limit_s(f"{role}/0", phase) + MARGIN_S < config.rollout.request_timeout


def test_nobody_waits_in_vain_for_one_that_a_debugger_holds():
    assert patience_s(changed(watchdog__serving_s=None), "rollout") == math.inf


def test_limits_of_the_work_itself_act_first():
    config = CONFIG()
    watch = hang_watch(config)
    for role in ("server", "rollout", "trainer", "reward", "episodes"):
        assert watch.limit_s(f"{role}/0", "loading") > config.rollout.setup_timeout
    config.rollout.setup_timeout, config.actor.dist_timeout_s = 5000.0, 700
    config.workflow.block_timeout_s = None
    watch = hang_watch(config)
    assert watch.limit_s("server/0", "loading") > 5000
    assert watch.limit_s("trainer/0", "saving") > 7000
    assert watch.limit_s("episodes/0", "serving") == math.inf
    assert watch.limit_s("episodes/0", "serving", is_stopped=True) == 300
    assert watch.limit_s("rollout/0", "serving") == 300
    config.actor.weight_update_mode, config.weights.broadcast.timeout_s = "collective", 9000
    watch = hang_watch(config)
    assert watch.limit_s("server/0", "updating") > 9000 and watch.limit_s("trainer/0", "publishing") > 9000
