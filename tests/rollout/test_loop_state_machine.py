"""In any order of events no sample is too old, duplicated or lost, and nothing hangs."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.rollout_world import World, clock, evaluated, settings

ACTIONS = (
    *("lease",) * 4,
    "lease without inspection",
    "lose",
    "report",
    *("finish",) * 10,
    *("train",) * 4,
    *("train and save",) * 2,
    *("load",) * 3,
    *(
        "equal",
        "unjudged",
        "fail",
        "server fails",
        "reject",
        "save",
        "worker restarts",
        "server dies",
        "server comes",
        "late",
    ),
    *("prefetch", "prefetch", "another server", "crash", "crash"),
)

settings_of_all_kinds = st.builds(
    settings,
    synchronous=st.booleans(),
    max_staleness=st.integers(1, 3),
    batch_size=st.integers(1, 4),
    max_concurrent=st.integers(1, 9),
    max_pending=st.sampled_from([4, 100]),
    num_servers=st.integers(1, 2),
    schedule_policy=st.sampled_from(["round_robin", "least_loaded"]),
    dynamic_sampling=st.booleans(),
    refill=st.booleans(),
    oversampling_factor=st.sampled_from([1.0, 1.5, 2.0]),
    drop_last=st.booleans(),
    evaluated=st.sampled_from(
        [
            (),
            (evaluated(clock=clock(freq_steps=2)),),
            (evaluated(clock=clock(freq_steps=2), num_examples=3), evaluated(name="b", clock=clock(freq_steps=3))),
        ]
    ),
    evaluation_pin=st.booleans(),
    request_retries=st.integers(0, 2),
)


def act(world: World, action: str, pick: int) -> None:
    loop = world.loop
    held = [lease for lease, _ in world.leases.values()]
    chosen = held[pick % len(held)] if held else None
    server = pick % world.settings.num_servers
    worker = f"episodes/{pick % 2}"
    if action == "lease":
        world.lease(1 + pick % 5, worker)
    elif action == "lease without inspection":
        world.lease(1 + pick % 5, worker, inspects=False)
    elif action == "lose":
        world.lose(1 + pick % 5, worker)
    elif action == "report":
        world.report(worker)
    elif action == "load":
        if f"server/{server}" in loop.server_pool.servers:
            world.load(server)
    elif action == "train":
        world.train()
    elif action == "prefetch":
        if loop.batches.next_step < loop.length.total_steps:
            world.fetch(loop.batches.next_step)
    elif action == "save":
        world.save()
    elif action == "train and save":
        world.train()
        world.save()
    elif action == "crash":
        world.begin()
    elif action == "server dies":
        world.server_dies(server)
    elif action == "server comes":
        if f"server/{server}" not in loop.server_pool.servers:
            world.server_comes(server)
    elif action == "worker restarts":
        world.worker_restarts(worker)
    elif action == "late":
        world.time += 60
        loop.check_time()
        world.after()
    elif chosen is not None:
        if action == "another server":
            loop.another_server(chosen.worker, chosen.id, chosen.address)
            world.after()
        elif action == "equal":
            world.finish(chosen, rewards=[1.0, 1.0])
        elif action == "unjudged" and chosen.group.evaluation is None:
            world.finish(chosen, rewards=[None, 1.0])
        elif action == "reject":
            world.finish(chosen, "rejected")
        elif action == "fail":
            world.finish(chosen, "failed", error="broken", error_kind="reward")
        elif action == "server fails":
            world.finish(chosen, "failed", error="broken", error_kind="server")
        else:
            world.finish(chosen)


def check(world: World) -> None:
    loop = world.loop
    held = {lease.group.number for lease in loop.leases if lease.group.evaluation is None}
    assert loop.gate.accepted == loop.batches.next_step * world.settings.batch_size + len(loop.ready)
    assert loop.gate.running >= len(held)
    assert loop.settings.synchronous or loop.gate.running == len(held)
    assert loop.gate.running <= world.settings.max_concurrent
    assert not held & set(loop.ready)
    assert all(server.groups >= 0 and server.tokens >= 0 for server in loop.server_pool.servers.values())
    assert world.problems() == []


actions_of_all_kinds = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7)), min_size=20, max_size=120)


@given(settings_of_all_kinds, actions_of_all_kinds, st.sets(st.integers(0, 10), max_size=4))
def test_no_order_of_events_breaks_an_invariant(config, actions, too_long) -> None:
    world = World(config, rows=11, valid_rows=5, benchmark_rows=6, too_long=too_long)
    for action, pick in actions:
        act(world, action, pick)
        check(world)
        if world.loop.failure:  # as many failures in a row as a batch has groups are the end, by design
            world.begin()
    world.run()
    check(world)
    assert world.step == world.loop.length.total_steps
    assert sum(world.counts().get(name, 0) for name in ("trained", "dropped", "failed", "pending", "finished")) > 0
    if config.evaluated:
        for _ in range(20):
            world.load_all()
            world.lease()
            world.finish_all()
        assert world.loop.evaluations.idle
        evaluated = {event["version"] for event in world.events if event["event"] == "evaluated"}
        assert world.step in evaluated
        assert 0 in evaluated or world.attempts > 1  # who goes back to a later step has no weights of version 0
        pinned = (0, world.step, *(range(world.step) if config.evaluation_pin else ()))
        for values in (values for _, values in world.scores if values["eval/due_step"] in pinned):
            prefix = "eval/" if "eval/version_min" in values else "eval/b/"
            assert values[f"{prefix}version_min"] == values[f"{prefix}version_max"]
