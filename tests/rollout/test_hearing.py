"""Servers that owe answers and do not go on, and whose failures count then."""

import math
from typing import Any

import pytest

from areal_like.process.identity import SERVER
from areal_like.process.patience import SilenceLimits, patience_s, silence_of_servers
from areal_like.rollout.controller.hearing import IDLE_LOOKS, Hearing
from areal_like.rollout.settings import rollout_settings
from areal_like.rollout.sync_order import MAX_LOSSES
from tests.support.rollout_world import World, grpo, settings

HANGS: dict[str, Any] = {"error": "no answer within 30 s (rollout.request_timeout)", "error_kind": "server"}


def heard(*looks):
    """Two seconds apart."""
    hearing = Hearing()
    return [hearing.look(counts, 2.0 * number) for number, counts in enumerate(looks)]


def test_a_server_is_silent_while_it_owes_answers_and_counts_nothing():
    busy = {"tokens": 5, "running": 1, "busy_s": 1.0}
    assert heard(busy, {**busy, "tokens": 6}, {**busy, "tokens": 7}) == [0, 0, 0]
    stuck = [{**busy, "busy_s": 2.0 * number, "expired": number, "running": 3 - number} for number in range(3)]
    assert heard(*stuck) == [0, 2, 4]
    assert heard(busy, None, None, {**busy, "tokens": 6}, None) == [0, 2, 4, 0, 2]


def test_a_server_that_owes_nothing_is_not_silent_and_is_heard_again_by_an_answer_only():
    idle = {"tokens": 5, "running": 0, "waiting": 0, "asked": 0}
    assert heard(idle, idle, idle) == [0, 0, 0]
    owes = {**idle, "asked": 1}
    assert heard(idle, owes, idle, owes, {**owes, "tokens": 6}) == [0, 2, 4, 6, 0]


def test_a_server_that_refuses_at_once_owes_nothing_for_long_and_is_silent_no_more():
    """What fails there counts: it would be generated again without end."""
    idle = {"tokens": 5, "running": 0}
    assert heard(idle, {**idle, "running": 1}, None, *[idle] * IDLE_LOOKS) == [0, 2, 4, 6, 8, 10, 12, 0]


def test_silence_lasts_until_a_server_that_hangs_is_replaced():
    config = grpo("rollout.request_timeout=30")
    assert rollout_settings(config).silence == SilenceLimits(15.0, patience_s(config, SERVER))
    assert silence_of_servers(grpo()) == SilenceLimits(15.0, patience_s(grpo(), SERVER)), "a proof may take 30 s"
    assert silence_of_servers(grpo("rollout.request_timeout=8")).least_s == 4
    never = grpo(*(f"watchdog.{phase}_s=null" for phase in ("generating", "serving", "updating")))
    assert silence_of_servers(never).most_s == 0, "it is never killed"
    loads = grpo("watchdog.loading_s=null", "watchdog.generating_s=10000")
    assert 10000 < silence_of_servers(loads).most_s < math.inf


@pytest.mark.parametrize("synchronous", [False, True])
def test_what_fails_at_a_server_that_hangs_counts_against_no_group(synchronous):
    world = World(settings(synchronous=synchronous, request_retries=0, silence=SilenceLimits(15.0, 400.0)))
    world.load()
    for silent_s in (20.0, 200.0, 399.0):
        world.loop.server_pool.heard("server/0", silent_s)
        leases = world.lease()
        for lease in leases[:1] if synchronous else leases:
            world.finish(lease, "failed", **HANGS)
        if synchronous:
            world.leases.clear()
    assert world.loop.failure == "" and not [each for each in world.events if each["event"] == "failed"]
    assert "server/0 answers nobody: no answer within 30 s" in world.events[-1]["why"]
    world.server_dies()
    assert [step for step in world.run()[:2]] == [[0, 1, 2, 3], [4, 5, 6, 7]], "no row is lost"
    assert world.problems() == []


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("silent_s", [0.0, 14.0, 400.0])
def test_what_fails_at_a_server_that_goes_on_or_should_have_been_replaced_counts(silent_s, synchronous):
    world = World(settings(synchronous=synchronous, request_retries=0, silence=SilenceLimits(15.0, 400.0)))
    world.load()
    world.loop.server_pool.heard("server/0", silent_s)
    for lease in world.lease():
        world.finish(lease, "failed", **HANGS)
    assert "groups in a row failed" in world.loop.failure and "no answer within 30 s" in world.loop.failure


def test_a_lease_that_is_past_its_time_at_a_server_that_hangs_is_given_again_without_a_failure():
    world = World(settings(lease_limit_s=10, request_retries=0, silence=SilenceLimits(5.0, 400.0)))
    world.load()
    world.loop.server_pool.heard("server/0", 6.0)
    world.lease(1)
    world.time = 10.0
    world.loop.check_time()
    world.after()
    assert world.events[-1]["event"] == "requeued" and world.lease(1)[0].id == "0.2"


def test_another_failure_than_of_the_server_counts_while_it_hangs():
    world = World(settings(request_retries=0, silence=SilenceLimits(5.0, 400.0)))
    world.load()
    world.loop.server_pool.heard("server/0", 6.0)
    for lease in world.lease(4):
        world.finish(lease, "failed", error="boom", error_kind="reward")
    assert "4 groups in a row failed" in world.loop.failure


def test_a_server_that_hangs_is_no_process_that_died_of_a_synchronous_batch():
    world = World(settings(synchronous=True, silence=SilenceLimits(15.0, 4000.0)))
    world.load()
    for number in range(3 * MAX_LOSSES):
        world.loop.server_pool.heard("server/0", 16.0 + 45 * number)
        lease = world.lease()[0]
        assert world.loop.another_server(lease.worker, lease.id, lease.address) == ""
        world.after()
        world.leases.clear()
    assert world.loop.failure == ""
    world.server_dies()
    assert world.run()[0] == [0, 1, 2, 3]
