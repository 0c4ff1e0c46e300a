"""Calls with the run's token that are malformed are refused by the controller with 400, and change nothing."""

import asyncio
import copy
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest

from areal_like.process.errors import HttpError
from areal_like.process.frames import LENGTH_BYTES, pack
from areal_like.process.http import application
from areal_like.process.identity import CallGuard, Identity, call_headers
from areal_like.process.run import LEDGER
from areal_like.rollout.controller import routes as app
from areal_like.rollout.controller.routes import Routes
from tests.support.controller_world import SECRET, World, make_run, world_of
from tests.support.hostile_requests import COUNT, FULL, bad, routes_of, send_all
from tests.support.rollout_world import facts

pytestmark = [pytest.mark.hypothesis, pytest.mark.timeout(3600 if FULL else 300)]
HUGE = 1 << 53
NUMBERS: tuple[Any, ...] = (None, "1", 1.5, True, -1, HUGE, [], {})
DATASET = {"rows": 2, "digest": "d1", "probe_tokens": [1]}
HELLO = {"worker": "episodes/0", "incarnation": 1, "datasets": {"train": DATASET, "valid": None}}
INDEX: dict[str, Any] = {"version": 1, "run_id": "run1", "buckets": [], "tensors": [], "probe": None}
PLACE = {"host": "127.0.0.1", "port": 1, "devices": []}
SENT = {"version": 1, "transport": "collective", "folder": None, "index": INDEX, "meeting": PLACE}
FILES = {"version": 1, "folder": "somewhere"}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LONG_POLL_S", 0.01)


def without(body: dict[str, Any], path: str, *values: Any) -> list[dict[str, Any]]:
    """Copies of a body: one without what is at the path, and one for each value in its place."""
    copies = []
    for value in (..., *values):
        one = copy.deepcopy(body)
        *above, last = path.split(".")
        part: Any = one
        for key in above:
            part = part[int(key)] if isinstance(part, list) else part[key]
        if value is ...:
            del part[last]
        else:
            part[last] = value
        copies.append(one)
    return copies


HELLOS = [
    *without(HELLO, "worker", None, 1, "", "x" * 1000, []),
    *without(HELLO, "incarnation", *NUMBERS),
    *without(HELLO, "datasets", None, [], {}),
    *without(HELLO, "datasets.train", None, [], "train"),
    *without(HELLO, "datasets.train.rows", *NUMBERS, HUGE - 1),
    *without(HELLO, "datasets.train.digest", None, 1),
    *without(HELLO, "datasets.train.probe_tokens", None, {}, ["1"], [-1], [True], [1 << 31]),
    {**HELLO, "datasets": {"train": DATASET, "valid": {**DATASET, "rows": HUGE - 1}}},
    {**HELLO, "datasets": {"train": DATASET, "valid": []}},
]
ROWS: tuple[Any, ...] = (
    *(1, [], {}, [0, "0" * 16], [99, "0" * 16, False], [-1, "0" * 16, False]),
    *([0, "xyz", False], [0, 7, False], [0, "0" * 16, 1], [0.0, "0" * 16, True]),
)
INSPECTED: tuple[Any, ...] = (
    *(1, [], {"train": {}}, {"other": [[0, "0" * 16, False]]}),
    *({"train": [row]} for row in ROWS),
)
WANTED = {"worker": "episodes/0", "want": 1, "call": 1, "held": []}
OTHERS: dict[str, list[Any]] = {
    "/lease": [
        *without(WANTED, "want", *NUMBERS),
        *without(WANTED, "worker", None, 1, ""),
        *without(WANTED, "call", *NUMBERS, 0),
        *without(WANTED, "held", None, 1, {}, [1]),
        *({**WANTED, "inspected": part} for part in INSPECTED),
    ],
    "/another_server": [
        *without({"lease": "0.1", "gone": "x"}, "lease", None, 1),
        *without({"lease": "0.1", "gone": "x"}, "gone", None, 1),
    ],
    "/publish": [
        *without(FILES, "version", *NUMBERS),
        *without(FILES, "folder", None, 1, [], "a\0b", "x" * 100_000),
        {**FILES, "transport": "pigeon"},
        {**FILES, "transport": 1},
        *without(SENT, "index", None, [], {}),
        *without(SENT, "index.tensors", None, 1, [{}], [[]]),
        *without(SENT, "index.buckets", None, 1, [{}]),
        *without(SENT, "meeting", None, [], {}),
        *without(SENT, "meeting.port", *NUMBERS, 0, 1 << 16),
        *without(SENT, "meeting.host", None, 1, ""),
        *without(SENT, "meeting.devices", None, {}, [1]),
    ],
    "/send": without({"version": -1}, "version", *(one for one in NUMBERS if one != -1), -2),
    "/sending": without({"group": "g"}, "group", None, 1),
    "/batch": [
        *without({"step": 0, "rank": 0, "world": 1}, "step", *NUMBERS),
        *without({"step": 0, "rank": 0, "world": 1}, "rank", *NUMBERS, 1),
        *without({"step": 0, "rank": 0, "world": 1}, "world", *NUMBERS, 0, HUGE - 1),
    ],
    "/done": without({"step": 0}, "step", *NUMBERS),
    "/state": without({"step": 0}, "step", *NUMBERS),
    "/finished": without({"early": False}, "early", None, 0, "no"),
}
NOT_EVEN_OBJECTS: tuple[Any, ...] = (None, [], 1, "x", [[1]])


COUNTS: tuple[Any, ...] = ([], {"x": 1}, {"errors": -1}, {"errors": "1"}, {"errors": None})
TIMINGS: tuple[Any, ...] = ([], {"total_s": "1"}, {"total_s": None})
HEADS: tuple[Any, ...] = (None, [], 1, {}, {"sizes": []}, {"header": [], "sizes": []})


def malformed_frames(lease: str) -> list[bytes]:
    result = {"lease": lease, "status": "done", "facts": facts(0, [0.0, 1.0]), "timings": {"total_s": 1.0}}
    header = {"worker": "episodes/0", "results": [result], "counts": {"errors": 0}}
    headers = [
        *without(header, "worker", None, 1, ""),
        *without(header, "results", None, {}, 1, [1], [None], [[]], [result, result]),
        *({**header, "counts": counts} for counts in COUNTS),
        *without(header, "results.0.lease", None, 1),
        *without(header, "results.0.status", None, 1, "finished", "failed", "rejected"),
        *without(header, "results.0.facts", None, [], {}, [1], [{}], [None]),
        *({**header, "results": [{**result, "timings": one}]} for one in TIMINGS),
        *({**header, "results": [{**result, key: 1}]} for key in ("error", "error_kind")),
    ]
    for key in ("length", "generated", "loss_tokens", "version_min", "version_max"):
        headers += without(header, f"results.0.facts.0.{key}", *NUMBERS)
    headers += without(header, "results.0.facts.0.reward", "1", True, [])
    unrewarded = [{**fact, "reward": None} for fact in facts(0, [0.0, 1.0])]
    headers.append({**header, "results": [{**result, "facts": unrewarded}]})
    no_text = [{**fact, "text": 1} for fact in facts(0, [0.0, 1.0])]
    headers.append({**header, "results": [{**result, "facts": no_text}]})
    headers += without(header, "results.0.facts.0.rewards", None, [], {"part": None})
    headers += without(header, "results.0.facts.0.finish", None, "never", 1)
    headers += without(header, "results.0.facts.0.version_min", 5)  # above the newest
    sizes = (None, 1, [-1, 4], ["3"], [1.5], [True, 2], [2], [4], [1 << 40])
    wrong = [frame({"header": header, "sizes": size}, b"abc") for size in sizes]
    wrong += [frame(head, b"") for head in HEADS]
    whole = pack(header, [b"abc"])
    wrong += [whole[:-1], whole + b"x", whole[:20], b"", b"x", b"\xff" * 8, b"[" * 50_000]
    return [*(pack(one, [b"abc"]) for one in headers), pack(header), pack(header, [b"a", b"b"]), *wrong]


def frame(head: Any, rest: bytes) -> bytes:
    content = orjson.dumps(head)
    return len(content).to_bytes(LENGTH_BYTES, "little") + content + rest


def state(world: World) -> dict[str, Any]:
    """All state that a call could have changed."""
    controller, loop = world.controller, world.controller.loop
    ledger = world.run.rollouts / LEDGER
    state: dict[str, Any] = {
        "incarnations": dict(controller._incarnations),
        "over": (controller.over, set(controller.ended_workers), controller._final_wait, world.life.done()),
        "newest": controller.servers.publications.newest,
        "ledger": ledger.read_bytes() if ledger.exists() else b"",
        "metrics": world.metrics(),
    }
    if loop is not None:
        state |= {
            "gate": (loop.gate.accepted, loop.gate.running),
            "leases": sorted(lease.id for lease in loop.leases),
            "ready": sorted(loop.ready),
            "counts": repr(vars(loop.counts)),
            "steps": (loop.batches.next_step, loop.batches.done_steps, loop.queue.next_number),
            "rows left": loop.evaluations.rows_left,
            "known": [each.rows.num_known for each in loop.inspection.datasets.values()],
        }
    return state


async def refused(world: World, path: str, body: Any) -> None:
    caller = await world.caller("episodes/0")
    with pytest.raises(HttpError) as refusal:
        await caller.json("POST", world._served.address, path, body)
    assert refusal.value.status == 400, (path, body, refusal.value)


def test_a_malformed_registration_does_not_start_the_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run"), num_servers=0) as world:
            before = state(world)
            for body in (*HELLOS, *NOT_EVEN_OBJECTS):
                await refused(world, "/hello", body)
            assert state(world) == before and world.controller.loop is None
            await world.hello()
            assert world.controller.loop is not None

    asyncio.run(scenario())


def test_malformed_calls_change_nothing_and_the_run_completes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.served_version == 0)
            leases = await world.lease()
            assert leases
            before = state(world)
            for path, bodies in OTHERS.items():
                for body in (*bodies, *NOT_EVEN_OBJECTS):
                    await refused(world, path, body)
            for body in (*HELLOS, *NOT_EVEN_OBJECTS):
                await refused(world, "/hello", body)
            for content in malformed_frames(leases[0]["id"]):
                await refused(world, "/finish", content)
            assert state(world) == before
            await world.finish(leases)
            working = asyncio.create_task(world.work())
            assert [len(step) for step in await world.train()] == [4, 4, 4]
            async with asyncio.timeout(60):
                await world.life
                await working

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "Traceback" not in caplog.text


ENDING = ("/finished", "/publish")
"""Calls that are well-formed by chance may end the run there."""


def test_hostile_calls_with_the_token_do_not_end_the_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    me = call_headers(Identity("episodes", 0, attempt=1, incarnation=1), SECRET)

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            table = application(CallGuard("x"))
            table.add_routes(Routes(world.controller).table())
            routes = [(method, path) for method, path in routes_of(table) if path not in ENDING]
            lines = [f"{name}: {value}" for name, value in me.items()]
            statuses = await send_all(world._served.address, routes, 6, COUNT, lines)
            assert not bad(statuses), statuses
            assert all(400 in counts for (method, _), counts in statuses.items() if method == "POST")
            assert not world.life.done()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "Traceback" not in caplog.text
