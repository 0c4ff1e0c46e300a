"""The order of rows follows from the seed, and the length of a run from the configuration."""

import pytest

from areal_like.data.row_order import RowOrder
from areal_like.data.row_table import KEPT, RowTable
from areal_like.process.seeds import derive_seed
from areal_like.rollout.queue import GroupQueue
from areal_like.rollout.settings import RolloutSettings, num_servers, rollout_settings, run_length
from tests.support.rollout_world import grpo, settings


def table_of(num_rows: int) -> RowTable:
    """All rows are known."""
    table = RowTable(num_rows)
    table.states[:] = KEPT
    return table


def order_of(num_rows: int, seed: int = 3, batch_size: int = 1, shuffle: bool = True) -> RowOrder:
    order = RowOrder(seed, table_of(num_rows), batch_size, shuffle=shuffle, drop_last=True)
    assert order.is_known(5 * num_rows)
    return order


def queue_of(config: RolloutSettings, num_rows: int) -> GroupQueue:
    queue = GroupQueue(config, table_of(num_rows))
    assert queue.has(num_rows)
    return queue


def rows(order: RowOrder, first: int, last: int) -> list[int]:
    return [order.row(number) for number in range(first, last)]


def test_every_epoch_has_every_row_once_in_another_order():
    order = order_of(20, batch_size=20)
    epochs = [rows(order, 20 * epoch, 20 * (epoch + 1)) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [order.epoch(number) for number in (0, 19, 20, 59)] == [0, 0, 1, 2]


def test_the_order_depends_only_on_the_seed():
    order, again = order_of(20), order_of(20)
    expected = [order.row(number) for number in range(100)]
    assert [again.row(number) for number in reversed(range(100))] == expected[::-1]
    assert rows(order_of(20, seed=4), 0, 20) != expected[:20]


def test_the_rows_that_are_left_out_differ_from_epoch_to_epoch():
    order = order_of(10, batch_size=4)
    left_out = [set(range(10)) - set(rows(order, 8 * epoch, 8 * (epoch + 1))) for epoch in range(6)]
    assert all(len(missing) == 2 for missing in left_out)
    assert len({frozenset(missing) for missing in left_out}) > 1


def test_without_shuffling_rows_keep_their_order():
    assert rows(order_of(5, shuffle=False), 0, 8) == [0, 1, 2, 3, 4, 0, 1, 2]


def test_the_row_order_can_restart_at_a_number():
    order, replace_existing = order_of(10), order_of(10)
    replace_existing.begin(origin=7, first_epoch=0)
    assert rows(replace_existing, 7, 17) == rows(order, 0, 10)


def test_requeued_groups_come_first_in_order_of_number():
    config = settings()
    queue = queue_of(config, 10)
    first = [queue.take() for _ in range(5)]
    for index in (3, 0, 2):
        queue.put_back(first[index])
    assert [group.number for group in queue.again()] == [0, 2, 3]
    assert [queue.take().number for _ in range(4)] == [0, 2, 3, 5]


def test_the_sampling_seed_depends_on_the_group_and_not_on_time():
    config = settings(sampling_seed=9)
    queue = queue_of(config, 10)
    seeds = [queue.take().seed for _ in range(3)]
    assert seeds == [derive_seed(9, "sampling", number) for number in range(3)]
    assert queue.make(2).seed == seeds[2]


@pytest.mark.parametrize(
    ("changes", "rows", "steps_per_epoch", "total"),
    [
        ({}, 10, 2, 4),
        ({"total_epochs": 5}, 10, 2, 10),
        ({"total_epochs": 5, "max_steps": 3}, 10, 2, 3),
        ({"total_epochs": 5, "max_samples": 9}, 10, 2, 2),  # 8 samples a step
        ({"drop_last": False}, 10, 3, 6),
        ({"drop_last": False}, 3, 1, 2),
    ],
)
def test_the_shortest_limit_ends_the_run(changes, rows, steps_per_epoch, total):
    length = run_length(settings(**changes), rows)
    assert (length.steps_per_epoch, length.total_steps) == (steps_per_epoch, total)


def test_too_few_rows_are_an_error():
    with pytest.raises(ValueError, match=r"^train_dataset.batch_size: a batch needs 4 rows, and the data has only 3"):
        run_length(settings(), 3)
    with pytest.raises(ValueError, match=r"^train_dataset: there are no rows"):
        run_length(settings(), 0)


def test_settings_are_read_from_the_configuration():
    config = grpo("rollout.max_head_offpolicyness=3", "rollout.backend=embedded:d2", "gconfig.greedy=true")
    loop_settings = rollout_settings(config)
    assert (loop_settings.synchronous, loop_settings.max_staleness, loop_settings.num_servers) == (False, 3, 2)
    assert loop_settings.max_concurrent == loop_settings.batch_size == config.train_dataset.batch_size
    assert loop_settings.max_pending == 16 * loop_settings.max_concurrent
    (held_out,) = loop_settings.evaluated
    assert held_out.concurrent == loop_settings.max_concurrent * config.gconfig.n_samples
    assert loop_settings.lease_limit_s == config.rollout.request_timeout + config.reward.timeout_s
    assert loop_settings.sampling["greedy"] is True
    assert "top_p" not in loop_settings.sampling
    assert held_out.sampling["greedy"] is True


@pytest.mark.shows("train_dataset.shuffle")
def test_shuffle_of_the_configuration_orders_the_rows_of_a_run():
    orders = {}
    for value in ("true", "false"):
        loop_settings = rollout_settings(grpo(f"train_dataset.shuffle={value}", "train_dataset.batch_size=4"))
        queue = queue_of(loop_settings, 8)
        orders[value] = [queue.take().row for _ in range(8)]
    assert orders["false"] == list(range(8)) == sorted(orders["true"]) != orders["true"]


@pytest.mark.shows("train_dataset.drop_last")
@pytest.mark.parametrize(("value", "steps", "rows"), [("true", 2, 8), ("false", 3, 10)])
def test_drop_last_of_the_configuration_decides_on_the_rows_of_an_epoch(value, steps, rows):
    loop_settings = rollout_settings(grpo(f"train_dataset.drop_last={value}", "train_dataset.batch_size=4"))
    length = run_length(loop_settings, 10)
    assert (length.steps_per_epoch, length.rows_per_epoch) == (steps, rows)


@pytest.mark.shows("rollout.request_timeout")
def test_request_timeout_of_the_configuration_limits_a_lease():
    base, longer = (rollout_settings(grpo(f"rollout.request_timeout={limit}")).lease_limit_s for limit in (50, 80))
    assert longer - base == 30


def test_a_lease_of_agents_lasts_until_those_before_it_have_ended():
    words = ("rollout.request_timeout=50", "n_samples=8", "rollout.max_concurrent_rollouts=8", "valid_dataset=null")
    plain = rollout_settings(grpo(*words)).lease_limit_s
    agents = ("workflow.name=agent", "agent.command=[a]", "agent.max_concurrent=16", "agent.timeout_s=100")
    one = "rollout.num_episode_workers=1"
    assert rollout_settings(grpo(*words, *agents, one)).lease_limit_s == plain - 50 + 8 * 8 / 16 * 100
    workers = "rollout.num_episode_workers=4"
    assert rollout_settings(grpo(*words, *agents, workers)).lease_limit_s == plain - 50 + 100
    maze = "evaluator.benchmarks=[{name: maze, id: 'verifiers:owner/maze', freq_steps: 1}]"
    limits = ("environments.timeout_s=100", "environments.max_concurrent=32")
    evaluated = rollout_settings(grpo(*words, one, maze, *limits))
    assert evaluated.lease_limit_s == plain - 50 + (8 * 8 + 64) / 32 * 100
    whole = (*words, one, maze, "environments.timeout_s=100", "environments.max_concurrent=15")
    assert rollout_settings(grpo(*whole)).lease_limit_s == plain - 50 + (8 * 8 + 64) / 8 * 100


def test_a_lease_of_text_environments_lasts_until_those_before_it_have_given_back_their_processes():
    words = [*("rollout.request_timeout=50", "n_samples=8", "rollout.max_concurrent_rollouts=8", "valid_dataset=null")]
    words.append("rollout.num_episode_workers=1")
    plain = rollout_settings(grpo(*words)).lease_limit_s - 50
    played = "workflow.name=text_environment"
    assert rollout_settings(grpo(*words, played)).lease_limit_s == plain + 8 * 8 / 8 * 16 * 60
    args = "workflow.args={max_processes: 16, max_turns: 5, call_timeout_s: 20}"
    assert rollout_settings(grpo(*words, played, args)).lease_limit_s == plain + 8 * 8 / 16 * 5 * 20
    limited = "workflow.args={max_processes: 16, timeout_s: 30}"
    assert rollout_settings(grpo(*words, played, limited)).lease_limit_s == plain + 8 * 8 / 16 * 30
    game = "evaluator.benchmarks=[{name: game, id: 'textarena:Wordle-v0', freq_steps: 1}]"
    assert rollout_settings(grpo(*words, game)).lease_limit_s == plain + (8 * 8 + 64) / 8 * 16 * 60
    quick = "{name: text_environment, args: {max_processes: 16, timeout_s: 30}}"
    both = f"environments.train=[{{id: 'textarena:A-v0', workflow: {quick}}}, {{id: 'textarena:B-v0'}}]"
    assert rollout_settings(grpo(*words, both, "task=null")).lease_limit_s == plain + 8 * 8 / 8 * 16 * 60


@pytest.mark.parametrize("override", ["async_training=false", "rollout.max_head_offpolicyness=0"])
def test_synchronous_mode_allows_no_staleness(override):
    loop_settings = rollout_settings(grpo(override))
    assert (loop_settings.synchronous, loop_settings.max_staleness) == (True, 0)


def test_evaluator_keys_on_versions_and_failures_reach_the_loop():
    usual, changed = (
        rollout_settings(grpo()),
        rollout_settings(grpo("evaluator.pin=true", "evaluator.max_failed_share=0.3")),
    )
    assert (usual.evaluation_pin, usual.evaluation_max_failed_share) == (False, 0.1)
    assert (changed.evaluation_pin, changed.evaluation_max_failed_share) == (True, 0.3)


def test_without_a_clock_or_when_measuring_nothing_is_evaluated():
    assert rollout_settings(grpo()).evaluated
    assert not rollout_settings(grpo("bench=true")).evaluated
    assert not rollout_settings(grpo("evaluator.freq_steps=null")).evaluated
    assert not rollout_settings(grpo("valid_dataset=null")).evaluated


def test_a_backend_without_sizes_is_one_server():
    assert num_servers(grpo("rollout.backend=embedded")) == 1
