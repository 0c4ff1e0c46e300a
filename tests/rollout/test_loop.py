"""The rollout loop in asynchronous mode: leases, dropped groups, failures and deaths."""

from typing import Any

import pytest

from areal_like.rollout.async_order import MAX_LOSSES
from areal_like.rollout.curriculum.admission import Admission
from areal_like.rollout.curriculum.settings import CurriculumSettings
from areal_like.rollout.groups import Result
from tests.support.rollout_world import World, settings


def test_leases_go_as_far_ahead_as_staleness_allows():
    world = World(settings(max_staleness=1, max_concurrent=100))
    assert world.lease() == []  # no server has weights yet
    world.load()
    assert len(world.lease()) == 8
    world.finish_all()
    assert world.lease() == []
    world.train()
    assert world.lease() == []  # version 1 is published, but no server has it
    world.load()
    assert len(world.lease()) == 4


def test_running_and_pending_groups_are_limited():
    assert len(World(settings(max_concurrent=3)).run(until=2)) == 2
    world = World(settings(max_concurrent=3))
    world.load()
    assert len(world.lease()) == 3
    world = World(settings(max_concurrent=100, max_staleness=9, max_pending=5))
    world.load()
    assert len(world.lease()) == 5


def test_a_lease_has_everything_that_a_worker_needs():
    world = World(settings())
    world.load()
    lease, *_ = world.lease(2)
    wire = lease.wire(world.settings)
    assert wire["server"] == world.loop.server_pool.servers["server/0"].address
    assert (wire["id"], wire["group"], wire["purpose"], wire["split"]) == ("0.1", 0, "train", "train")
    assert (wire["row"], wire["n"], wire["order"]) == (world.loop.queue.row_order.row(0), 2, None)
    assert wire["sampling"] == world.settings.sampling


def test_a_group_that_is_too_old_is_dropped_and_generated_again():
    world = World(settings(max_staleness=1, max_concurrent=5))
    world.load()
    slow = world.lease(1)[0]
    for _ in range(2):
        world.load()
        world.lease(4)
        for lease, _ in list(world.leases.values()):
            if lease.id != slow.id:
                world.finish(lease)
        assert world.train() is not None
    world.load()
    world.finish(slow)  # of version 0, where batch 2 is next
    assert [e["event"] for e in world.events[-3:]] == ["finished", "dropped", "requeued"]
    assert world.events[-2]["reason"] == "stale"
    again = world.lease(1)[0]
    assert (again.group.number, again.id) == (0, "0.2")
    world.run()
    assert world.problems() == []
    assert world.counts()["trained"] == 4 * world.step
    assert sum(values.get("rollout/dropped_stale", 0) for _, values in world.reports) == 1


def test_dynamic_sampling_replaces_groups_of_equal_rewards():
    world = World(settings(dynamic_sampling=True, max_concurrent=4, max_staleness=1))
    world.load()
    for lease in world.lease():
        world.finish(lease, rewards=[1.0, 1.0] if lease.group.number % 2 else [0.0, 1.0])
    assert world.fetch() is None
    for lease in world.lease():
        world.finish(lease)
    assert [group.number for group in world.fetch().groups] == [0, 2, 4, 5]
    world.train()
    assert world.reports[0][1]["rollout/dropped_equal"] == 2
    assert world.reports[0][1]["reward/groups_without_spread"] == 0


def first_verdict(world: World, num_replaced: int, rewards: list[float]) -> dict[str, Any]:
    """Of a batch of four groups with the scores 0 and 1, before which as many groups with these were replaced."""
    while world.fetch() is None:
        world.load()
        for lease in world.lease():
            world.finish(lease, rewards=rewards if lease.group.number < num_replaced else [0.0, 1.0])
    (judged,) = (event for event in world.events if event["event"] == "judged")
    return judged


@pytest.mark.parametrize(("reward", "pass_k", "rows"), [(1.0, 1.0, "harder rows"), (0.0, 0.2, "easier rows")])
def test_the_verdict_on_the_first_step_is_also_on_groups_that_were_replaced(reward: float, pass_k: float, rows: str):
    judged = first_verdict(World(settings(dynamic_sampling=True), rows=100), 16, [reward, reward])
    assert judged["text"].startswith(f"weak signal: {rows} (train_dataset.path)")
    assert (judged["spread"], judged["groups"], judged["answers"]) == (4, 20, 40)
    assert (judged["pass_1"], judged["pass_k"]) == (pytest.approx((4 * 0.5 + 16 * reward) / 20), pass_k)


def test_replaced_groups_of_another_difficulty_have_different_rewards_in_the_verdict():
    not_easy = CurriculumSettings(admission=Admission(max_reward=0.7))
    judged = first_verdict(World(settings(curriculum=not_easy), rows=100), 16, [1.0, 1.0, 1.0, 0.0])
    assert (judged["spread"], judged["groups"], judged["signal"]) == (20, 20, "good signal")


def test_without_refill_the_batch_is_smaller_or_whole_where_nothing_would_be_left():
    world = World(settings(dynamic_sampling=True, refill=False, max_staleness=1, max_concurrent=4))
    world.load()
    for lease in world.lease():
        world.finish(lease, rewards=[1.0, 1.0] if lease.group.number < 3 else [0.0, 1.0])
    assert [group.number for group in world.train().groups] == [3]
    assert world.loop.gate.accepted == 4
    world.load()
    world.lease()
    world.finish_all(rewards=[1.0, 1.0])
    assert len(world.train().groups) == 4
    assert world.problems() == []


def test_when_all_prompts_are_solved_batches_are_still_made():
    world = World(settings(dynamic_sampling=True), rows=8)
    for _ in range(40):
        world.load()
        world.lease()
        world.finish_all(rewards=[1.0, 1.0])
        world.train()
    assert world.step == world.loop.length.total_steps


def test_oversampling_starts_more_groups_and_uses_the_first_to_finish():
    world = World(settings(oversampling_factor=1.5, max_staleness=1, max_concurrent=100))
    world.load()
    leases = world.lease()
    assert len(leases) == 8 + 2
    for lease in leases[5:]:
        world.finish(lease)
    assert [group.number for group in world.train().groups] == [5, 6, 7, 8]
    assert world.run()
    assert world.problems() == []


def test_a_steps_report_has_the_most_frequent_error_of_failed_groups():
    world = World(settings(request_retries=0, batch_size=4, max_concurrent=8))
    world.load()
    for error in ("rare", "often", "often"):
        world.finish(world.lease(1)[0], "failed", error=error, error_kind="reward")
    world.run()
    first, second = world.reports[:2]
    assert (first[1]["rollout/failed"], first[1]["rollout/error_groups"], world.step_errors[0]) == (3, 2, "often")
    assert (second[1]["rollout/failed"], second[1]["rollout/error_groups"], world.step_errors[1]) == (0, 0, "")


@pytest.mark.parametrize("kind", ["reward", "workflow", "server", "row"])
def test_a_failed_group_is_retried_and_then_dropped(kind):
    world = World(settings(request_retries=1, batch_size=2))
    world.load()
    world.finish(world.lease(1)[0], "failed", error="boom", error_kind=kind)
    again = world.lease(1)[0]
    assert (again.group.number, again.id) == (0, "0.2")
    world.finish(again, "failed", error="boom again", error_kind=kind)
    failed = world.events[-1]
    assert (failed["event"], failed["group"], failed["error"]) == ("failed", 0, "boom")
    steps = world.run()
    assert 0 not in [number for step in steps for number in step]
    assert world.counts()["failed"] == 1
    assert world.reports[0][1]["rollout/failed"] == 1


def test_when_a_batch_of_groups_fails_in_a_row_the_run_ends_with_the_first_error():
    world = World(settings(request_retries=0))
    world.load()
    for number, lease in enumerate(world.lease(4)):
        assert not world.loop.failure
        world.finish(lease, "failed", error=f"boom {number}", error_kind="reward")
    assert world.loop.failure == (
        "reward.name: 4 groups in a row failed, each in 1 tries (rollout.request_retries); the first error was: boom 0"
    )


def test_a_success_resets_the_count_of_failures():
    world = World(settings(request_retries=0))
    world.load()
    for number in range(12):
        (lease,) = world.lease(1)
        if number % 4 == 3:
            world.finish(lease)
        else:
            world.finish(lease, "failed", error="boom", error_kind="reward")
    assert not world.loop.failure


def test_a_rejected_row_is_replaced_by_the_next():
    world = World(settings(max_concurrent=4))
    world.load()
    for lease in world.lease():
        world.finish(lease, "rejected")
    assert [lease.group.number for lease in world.lease()] == [4, 5, 6, 7]
    world.finish_all()
    world.train()
    assert world.reports[0][1]["rollout/rejected"] == 4
    assert world.problems() == []


def test_a_workflow_that_rejects_every_row_ends_the_run():
    world = World(settings(), rows=8)
    world.load()
    for _ in range(8):
        world.finish(world.lease(1)[0], "rejected")
    assert world.loop.failure.startswith("workflow.name: the workflow returned None for 8 rows in a row")


def test_a_worker_that_starts_again_has_lost_its_leases_and_others_get_them():
    world = World(settings())
    world.load()
    first = world.lease(2, "episodes/0")
    world.lease(2, "episodes/1")
    world.worker_restarts("episodes/0")
    again = world.lease(2, "episodes/1")
    assert [lease.id for lease in again] == ["0.2", "1.2"]
    world.finish(first[0])
    assert world.loop.leases.take_cancelled("episodes/0") == ["0.1"]
    assert not world.loop.ready
    world.finish(again[0])
    assert list(world.loop.ready) == [0]
    assert world.loop.leases.take_cancelled("episodes/0") == []


def test_a_group_that_kills_every_worker_is_finally_dropped():
    world = World(settings(request_retries=0))
    world.load()
    for _ in range(MAX_LOSSES + 1):
        assert world.lease(1)[0].group.number == 0
        world.worker_restarts()
    assert world.lease(1)[0].group.number == 1
    assert "episodes/0 was started again" in next(e for e in world.events if e["event"] == "failed")["error"]


def test_a_lease_past_its_time_is_given_to_another():
    world = World(settings(lease_limit_s=10))
    world.load()
    late = world.lease(1)[0]
    world.time = 9.0
    world.loop.check_time()
    assert len(world.loop.leases) == 1
    world.time = 10.0
    world.loop.check_time()
    world.after()
    assert world.loop.leases.take_cancelled("episodes/0") == [late.id]
    assert world.lease(1)[0].id == "0.2"
    assert "10 s (rollout.request_timeout, reward.timeout_s; of agents" in world.events[-1]["why"]


def test_another_worker_s_lease_cannot_be_finished():
    world = World(settings())
    world.load()
    lease = world.lease(1, "episodes/0")[0]
    world.loop.finish("episodes/1", [Result(lease.id, "rejected")])
    assert [held.id for held in world.loop.leases] == [lease.id]
    assert world.loop.leases.take_cancelled("episodes/1") == [lease.id]


def test_groups_go_to_servers_by_round_robin_or_least_loaded():
    world = World(settings(num_servers=2, max_concurrent=8, max_staleness=3))
    world.load_all()
    assert [lease.server for lease in world.lease(4)].count("server/0") == 2
    world = World(settings(num_servers=2, schedule_policy="least_loaded", max_concurrent=8, max_staleness=3))
    world.load_all()
    leases = world.lease(6)
    for lease in leases:
        if lease.server == "server/1":
            world.finish(lease)
    assert {lease.server for lease in world.lease(2)} == {"server/1"}


def test_a_server_gets_at_most_its_share():
    world = World(settings(num_servers=2, max_concurrent=4, max_staleness=9))
    world.load_all()
    servers = [lease.server for lease in world.lease()]
    assert (servers.count("server/0"), servers.count("server/1")) == (2, 2)
    world.server_dies(1)
    world.finish_all()
    assert [lease.server for lease in world.lease()] == ["server/0"] * 4


def test_a_worker_gets_another_server_or_waits_for_one():
    world = World(settings(num_servers=2))
    world.load_all()
    leases = world.lease(2)
    lease = next(lease for lease in leases if lease.server == "server/1")
    gone = lease.address
    world.server_dies(1)
    assert world.loop.another_server("episodes/0", lease.id, gone) == world.loop.server_pool.servers["server/0"].address
    assert lease.server == "server/0"
    world.server_dies(0)
    assert world.loop.another_server("episodes/0", lease.id, lease.address) is None
    world.server_comes(0)
    assert world.loop.another_server("episodes/0", lease.id, lease.address) is None  # it has no weights yet
    world.load(0)
    assert world.loop.another_server("episodes/0", lease.id, lease.address) == lease.address
    world.worker_restarts("episodes/0")
    assert world.loop.another_server("episodes/0", lease.id, lease.address) == ""


def test_the_served_version_is_that_of_the_slowest_server():
    world = World(settings(num_servers=2, max_concurrent=100))
    world.load_all()
    world.lease()
    world.finish_all()
    world.train()
    world.load(0)
    assert world.lease() == []
    world.load(1)
    assert len(world.lease()) == 4


def test_each_step_has_metrics():
    world = World(settings(max_concurrent=4))
    world.load()
    world.lease()
    world.finish_all(rewards=[0.0, 1.0])
    world.train()
    ((step, values),) = world.reports
    assert step == 1
    assert values["rollout/groups"] == 4
    assert values["rollout/samples"] == 8
    assert (values["reward/mean"], values["reward/std"]) == (0.5, 0.5)
    assert (values["reward/min"], values["reward/max"]) == (0.0, 1.0)
    assert values["reward/part/part"] == 0.5
    assert values["rollout/answer_tokens_mean"] == values["rollout/answer_tokens_max"] == 3
    assert values["rollout/truncated_share"] == 0


def test_reward_failures_and_timings_of_groups_are_reported_with_the_step():
    world = World(settings(batch_size=2, max_concurrent=2))
    world.load()
    count = world.loop.counts.add_rewards
    count("episodes/0", {"errors": 3, "timeouts": 1, "children_lost": 1})
    count("episodes/0", {"errors": 4, "timeouts": 1, "children_lost": 1})
    world.worker_restarts()
    count("episodes/0", {"errors": 2, "timeouts": 0, "children_lost": 0})
    for lease, seconds in zip(world.lease(), (1.0, 3.0), strict=True):
        world.finish(lease, timings={"total_s": seconds, "generate_s": seconds / 2})
    world.train()
    ((_, values),) = world.reports
    counts = [values[f"rollout/{name}"] for name in ("reward_errors", "reward_timeouts", "reward_processes_lost")]
    assert counts == [6, 1, 1]
    assert (values["perf/episode_s"], values["perf/episode_generate_s"]) == (2.0, 1.0)
    assert "perf/episode_reward_s" not in values


def test_the_answers_of_the_first_step_are_judged_once_before_it():
    world = World(settings())
    for _ in range(2):
        world.load()
        world.lease()
        world.finish_all()
        assert world.train() is not None
    events = [each["event"] for each in world.events]
    assert events.count("judged") == 1
    assert events.index("judged") < events.index("batched")
    judged = next(each for each in world.events if each["event"] == "judged")
    assert (judged["groups"], judged["k"]) == (world.settings.batch_size, world.settings.n_samples)
    assert judged["text"].startswith(judged["signal"])
