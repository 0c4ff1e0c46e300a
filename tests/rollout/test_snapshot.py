"""A snapshot has all that the loop needs to resume, and the ledger shows whether it did."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.errors import Failure, HttpError
from areal_like.process.frames import pack
from areal_like.process.run import LEDGER
from areal_like.rollout.audit import audit
from areal_like.rollout.ledger import Ledger, read_ledger
from areal_like.rollout.snapshot import restore, snapshot
from tests.support.rollout_world import DIGEST, World, clock, evaluated, settings


def world_at_step_one() -> World:
    """Six groups finished, four of them trained on; two running; one waits to be generated again."""
    world = World(settings(max_concurrent=20, max_staleness=1, request_retries=3))
    world.load()
    for lease in world.lease()[:6]:
        world.finish(lease)
    world.train()
    world.load()
    leases = world.lease(1)
    world.finish(leases[0], "failed", error="boom", error_kind="reward")
    return world


def test_finished_groups_are_kept_and_running_ones_generated_again():
    world = world_at_step_one()
    world.save()
    frame = world.saved
    assert [entry["group"] for entry in frame.header["finished"]] == [4, 5]
    assert [bytes(blob) for blob in frame.blobs[:2]] == [b"4.1", b"5.1"]
    assert [number for number, _ in frame.header["again"]] == [6, 7, 8]
    world.begin()
    loop = world.loop
    assert (loop.gate.accepted, loop.gate.running, sorted(loop.ready)) == (6, 0, [4, 5])
    assert loop.ready[4].blob == b"4.1"
    world.load()
    assert [lease.group.number for lease in world.lease()] == [6, 7, 8, 9, 10, 11]
    world.run()
    assert world.problems() == []
    assert world.counts()["trained"] == 4 * world.step


def test_answers_of_weights_of_a_step_that_is_abandoned_are_generated_again():
    """They were published before the step was done."""
    world = world_at_step_one()
    world.loop.ready[4].facts[-1]["version_max"] = world.step + 1
    world.save()
    assert [entry["group"] for entry in world.saved.header["finished"]] == [5]
    assert [number for number, _ in world.saved.header["again"]] == [4, 6, 7, 8]
    world.begin()
    world.run()
    assert world.problems() == []


def test_a_batch_that_was_formed_ahead_is_not_lost():
    world = World(settings(max_concurrent=20, max_staleness=1))
    world.load()
    world.lease()
    world.finish_all()
    world.fetch(0)
    world.fetch(1)
    world.train()
    world.save()
    world.begin()
    assert [group.number for group in world.fetch(1).groups] == [4, 5, 6, 7]
    world.run()
    assert world.problems() == []


def test_a_rollback_trains_nothing_twice_in_the_surviving_lineage():
    world = World(settings(max_concurrent=20, max_staleness=2))
    world.run(until=1)
    world.save()
    world.run(until=3)
    world.begin()
    assert world.step == 1
    world.run()
    assert world.problems() == []
    assert world.counts()["trained"] == 4 * world.step


def test_without_a_checkpoint_everything_starts_over():
    world = World(settings())
    expected = World(settings()).run()
    world.run(until=2)
    world.begin()
    assert world.run() == expected
    assert world.problems() == []


def test_in_synchronous_mode_the_step_starts_again_from_its_beginning():
    config = settings(synchronous=True, dynamic_sampling=True, max_concurrent=8)
    world = World(config)
    world.run(until=1)
    before, _ = snapshot(world.loop, 1, DIGEST)
    world.load_all()
    for lease in world.lease():
        world.finish(lease, rewards=[1.0, 1.0] if lease.group.number == 4 else None)
    world.lease()
    after, _ = snapshot(world.loop, 1, DIGEST)
    assert after == {**before, "num_kept": 10}, "what is known of the rows stays known"
    assert before["finished"] == []


def test_a_snapshot_exists_only_for_the_completed_step():
    world = World(settings())
    world.run(until=2)
    for step in (1, 4):
        with pytest.raises(HttpError, match="the run is at step 2"):
            snapshot(world.loop, step, DIGEST)


def test_other_data_is_refused_with_a_message():
    world = world_at_step_one()
    world.save()
    with pytest.raises(
        ConfigError, match=r"^train_dataset: the data has changed since the checkpoint .* recover.skip_dataloader=true"
    ):
        world.begin(digest="other")


def test_the_data_can_be_started_from_the_beginning():
    world = world_at_step_one()
    world.save()
    world.begin(digest="other", begin_data_anew=True)
    assert not world.loop.ready
    world.load()
    rows = [lease.group.row for lease in world.lease()]
    assert rows[:4] == [world.loop.queue.row_order.row(number) for number in range(9, 13)]
    fresh = World(settings(max_concurrent=20))
    fresh.load()
    assert rows[:4] == [lease.group.row for lease in fresh.lease()][:4]
    world.run()
    assert world.problems() == []


def test_another_batch_size_resumes_at_the_next_epoch():
    world = world_at_step_one()
    world.save()
    world.settings = replace(world.settings, batch_size=5)
    rows = {group.number: group.row for group in world.loop.queue.again()}
    world.begin()
    assert world.loop.gate.accepted == 5 + 2
    assert {group.number: group.row for group in world.loop.queue.again()}.items() >= rows.items()
    assert world.loop.queue.row_order.epoch(world.loop.queue.next_number) == 2
    world.run()


@pytest.mark.parametrize("change", [{"seed": 2}, {"shuffle": False}])
def test_another_order_of_rows_resumes_at_the_next_epoch(change):
    """Otherwise rows of this epoch would be trained on twice."""
    world = world_at_step_one()
    world.save()
    world.settings = replace(world.settings, **change)
    world.begin()
    assert world.loop.queue.row_order.epoch(world.loop.queue.next_number) == 2
    assert world.loop.queue.next_number == 9, "of epoch 1 in the old order"
    world.run()
    assert world.problems() == []


@pytest.mark.parametrize("change", [{"n_samples": 4}, {"sampling": {"temperature": 0.5, "max_new_tokens": 10}}, {}])
def test_answers_that_would_be_others_now_are_generated_again(change):
    """Also for another reward or workflow, which the hashes alone tell. What its version did not know of is no
    change."""
    world = world_at_step_one()
    world.loop.settings = replace(world.settings, answers={"gconfig": "then", "reward": "then"})
    world.save()
    world.settings = replace(world.settings, answers={"gconfig": "then", "reward": "now", "agent": "new"}, **change)
    world.begin()
    assert world.loop.ready == {}
    again = "2 finished groups of the checkpoint: generated again, as reward has changed since then"
    assert again in world.loop.warnings
    world.load()
    leases = world.lease()
    assert [lease.group.number for lease in leases][:5] == [4, 5, 6, 7, 8]
    assert {lease.group.n for lease in leases} == {change.get("n_samples", 2)}
    world.run()
    assert world.problems() == []


def test_answers_too_old_for_another_bound_are_generated_again():
    world = world_at_step_one()
    world.save()
    world.settings = replace(world.settings, synchronous=True, max_staleness=0)
    world.book.max_staleness = 0
    world.begin()
    assert world.loop.ready == {}
    world.run()
    assert world.problems() == []


def test_other_held_out_rows_are_no_other_data():
    """Neither what is known of them nor the number of them is taken over."""
    config = settings(evaluated=(evaluated(clock=clock(freq_steps=1)),), synchronous=True, total_epochs=3)
    world = World(config, valid_rows=3)
    world.run(until=2)
    world.save()
    world.evaluation_rows["valid"] = 5
    world.begin(digest=f"{DIGEST}/other")
    world.run()
    assert world.problems() == []


def test_the_evaluation_interval_is_resumed_and_due_evaluations_run():
    config = settings(evaluated=(evaluated(clock=clock(freq_steps=2)),), synchronous=True, total_epochs=3)
    expected, world = World(config, valid_rows=3), World(config, valid_rows=3)
    expected.run()
    world.run(until=2)
    world.save()
    assert world.saved.header["evaluations"]["by_name"][""]["due"] == 2
    world.begin()
    world.run()
    assert [version for version, _ in world.scores] == [version for version, _ in expected.scores]


def test_a_loop_that_counts_steps_from_0_takes_over_prompts_but_no_versions():
    world = world_at_step_one()
    world.save()
    frame = world.saved
    frame.header["step"] = 9
    other = World(settings(max_concurrent=20))
    restore(other.loop, frame.header, frame.blobs, DIGEST)
    assert [group.number for group in other.loop.queue.again()] == [4, 5, 6, 7, 8]
    assert not other.loop.ready


@pytest.mark.parametrize("older", [1, 2])
def test_a_snapshot_of_an_older_format_is_refused_unless_the_data_begins_anew(older):
    world = world_at_step_one()
    header, blobs = snapshot(world.loop, 1, DIGEST)
    refusals = []
    for number in (older, 99):
        world.checkpoint = pack({**header, "format": number}, blobs)
        with pytest.raises(
            Failure, match=rf"^resume: .* has format {number}, and this version reads format 3"
        ) as caught:
            world.begin()
        refusals.append("recover.skip_dataloader=true" in str(caught.value))
    assert refusals == [True, False]
    kept = {name: header[name] for name in ("step", "digest", "next", "evaluations")}
    world.checkpoint = pack({**kept, "format": older}, [])
    world.begin(begin_data_anew=True)
    world.run()
    assert world.problems() == []


def test_the_ledger_survives_a_kill_and_drops_an_incomplete_line(tmp_path):
    path = tmp_path / "rollouts" / LEDGER
    ledger = Ledger(path, attempt=1)
    ledger.write([{"event": "submitted", "group": 0}, {"event": "submitted", "group": 1}])
    with path.open("ab") as file:
        file.write(b'{"event": "subm')
    assert [event["group"] for event in read_ledger(path)] == [0, 1]
    again = Ledger(path, attempt=2)
    again.write([{"event": "submitted", "group": 2}])
    ledger.close()
    again.close()
    events = list(read_ledger(path))
    assert [(event["group"], event["attempt"]) for event in events] == [(0, 1), (1, 1), (2, 2)]
    assert all(event["time"] > 0 for event in events)


def test_a_partial_write_is_completed(tmp_path):
    path = tmp_path / LEDGER
    ledger = Ledger(path, attempt=1)
    whole: Any = ledger._file
    part: Any = SimpleNamespace(write=lambda data: whole.write(data[:7]), close=whole.close)
    ledger._file = part
    ledger.write([{"event": "submitted", "group": group} for group in range(3)])
    ledger.close()
    assert [event["group"] for event in read_ledger(path)] == [0, 1, 2]


def test_the_ledger_shows_that_the_loop_has_forgotten_a_group():
    world = World(settings(max_concurrent=20, max_staleness=1, oversampling_factor=1.5))
    world.load()
    first, second, *leases = world.lease()
    for lease in leases[:6]:
        world.finish(lease)
    world.train()
    assert world.problems() == [], "they are generated still"
    world.loop.leases.close(second)
    world.run()
    numbers = [first.group.number, second.group.number]
    assert numbers == [0, 1]
    assert world.problems() == ["groups [1] were submitted, and after step 1 nothing is known of them"]


SUBMITTED = [{"event": "submitted", "group": group} for group in range(3)]
FINISHED = [{"event": "finished", "group": group, "versions": [0, 0]} for group in range(3)]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([*SUBMITTED[::2]], "groups [1] were never submitted"),
        ([FINISHED[0]], "group 0 is finished, and was never submitted"),
        ([SUBMITTED[0], FINISHED[0], FINISHED[0]], "group 0 is finished, and was finished"),
        ([SUBMITTED[0], {"event": "batched", "step": 0, "groups": [0]}], "group 0 is batched, and was pending"),
        (
            [*SUBMITTED, *FINISHED, {"event": "batched", "step": 0, "groups": [0, 2]}],
            "batch 0 passed over finished groups [1]",
        ),
        (
            [*SUBMITTED, *FINISHED, {"event": "dropped", "group": 1, "reason": "stale"}],
            "groups [1] were dropped as too old and not queued again",
        ),
        (
            [
                *(SUBMITTED[0], FINISHED[0], {"event": "batched", "step": 3, "groups": [0]}),
                {"event": "trained", "step": 3, "groups": [0]},
            ],
            "group 0 was 3 versions old in step 3, above 2",
        ),
        (
            [
                *(SUBMITTED[0], FINISHED[0], {"event": "batched", "step": 0, "groups": [0]}),
                {"event": "trained", "step": 0, "groups": [0]},
                *({"event": "batched", "step": 1, "groups": [0]}, {"event": "trained", "step": 1, "groups": [0]}),
            ],
            "group 0 was trained on in steps 0 and 1",
        ),
        (
            [*SUBMITTED, {"event": "recovered", "step": 0, "next": 3, "again": [0], "ready": [], "data_anew": False}],
            "the rollback to step 0 lost groups [1, 2]",
        ),
        (
            [
                *(*SUBMITTED, FINISHED[0], {"event": "batched", "step": 0, "groups": [0]}),
                {"event": "trained", "step": 0, "groups": [0], "pending": [2]},
            ],
            "groups [1] were submitted, and after step 0 nothing is known of them",
        ),
    ],
)
def test_the_audit_reports_each_violation(events, problem):
    assert any(problem in line for line in audit(events, max_staleness=2))
