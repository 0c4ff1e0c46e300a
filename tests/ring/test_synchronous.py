"""Synchronous runs give the same bits, also across a kill, and with two ranks the same to rounding."""

import asyncio
import hashlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from areal_like.process.exit_codes import STOPPED_EARLY
from areal_like.process.http import application
from areal_like.rollout.audit import audit
from areal_like.rollout.controller.routes import Routes
from areal_like.serving.control_protocol import OPEN_PATHS
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from tests.ring.start import SHORT, Ended, Running, left_behind, run, running, warnings_in
from tests.support.embedded_servers import embedded_server
from tests.support.hostile_requests import routes_of, send_all
from tests.support.listening_sockets import listening, open_to_others
from tests.support.tiny_models import tiny_qwen3

if TYPE_CHECKING:
    from areal_like.rollout.controller.controller import Controller

pytestmark = pytest.mark.xdist_group("ring-1")

WORDS = (
    *(*SHORT, "max_head_offpolicyness=0", "total_train_steps=6", "evaluator.freq_steps=3", "seed=3"),
    *("actor.entropy_coef=0.05", "train_dataset.path=rows.jsonl", "total_train_epochs=2"),
)
NUM_ROWS = 80
"""The first epoch ends with step 5, so that every run passes its end, also one that is resumed."""
SAME = ("train/loss", "train/grad_norm", "reward/mean", "eval/score", "offpolicy/logprob_diff_max")


def with_rows(root: Path) -> Path:
    sums = [(3 * row % 100, 7 * row % 100) for row in range(NUM_ROWS)]
    rows = [{"prompt": f"{one:02}+{other:02}=", "answer": f"{one + other:03}"} for one, other in sums]
    root.joinpath("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def bits(ended: Ended) -> str:
    return hashlib.sha256((ended.model() / "model.safetensors").read_bytes()).hexdigest()


def numbers(ended: Ended) -> dict[str, list[float]]:
    return {name: ended.metric(name) for name in SAME}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = run(with_rows(tmp_path_factory.mktemp("once")), *WORDS)
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.text
    return ended


def test_two_equal_runs_have_equal_weights_despite_other_clients(once, tmp_path):
    with running(with_rows(tmp_path), *WORDS) as process:
        process.wait_for_step(1)
        with hostile_requests_at(process) as statuses:
            again = process.wait()
    assert again.code == 0, again.text
    assert 401 in statuses and not {200, 500} & statuses
    assert again.summary["attempts"] == 1
    assert numbers(again) == numbers(once)
    assert bits(again) == bits(once)


@contextmanager
def hostile_requests_at(process: Running) -> Iterator[set[int]]:
    """Sends requests without the token to each protected route of server and controller, until the end of the block;
    yields the statuses of the responses."""
    entries = process.entries()
    addresses = {name: entries[name].address for name in ("server/0", "rollout/0")}
    statuses: set[int] = set()
    over = threading.Event()

    async def throw() -> None:
        _, server = embedded_server(LLMEngine(tiny_qwen3()))
        controller = application(None)
        controller.add_routes(Routes(cast("Controller", None)).table())
        apps = {"server/0": server.application(), "rollout/0": controller}
        for seed in itertools.count():
            for name, app in apps.items():
                for method, path in set(routes_of(app)) - {("GET", one) for one in OPEN_PATHS}:
                    if over.is_set():
                        return
                    try:
                        found = await send_all(addresses[name], [(method, path)], seed, 4, at_once=2)
                        statuses.update(*found.values())
                    except* OSError:
                        pass  # the run has ended

    thread = threading.Thread(target=lambda: asyncio.run(throw()))
    thread.start()
    try:
        yield statuses
    finally:
        over.set()
        thread.join()


def test_every_sample_is_of_the_version_that_it_trains(once):
    assert set(once.metric("offpolicy/staleness_max")) == {0}
    assert audit(once.ledger(), 0) == []


@pytest.mark.slow
def test_a_run_killed_twice_ends_with_the_same_bits(once, tmp_path):
    """A killed trainer costs an attempt; after all processes are killed, the same command resumes."""
    with running(with_rows(tmp_path), *WORDS) as killed:
        killed.wait_for_step(1)
        killed.kill("trainer")
        killed.wait_for_step(4, attempt=2)
        os.kill(killed.launcher(), signal.SIGKILL)
        killed.process.wait(120)
    resumed = run(tmp_path, *WORDS)
    assert resumed.code == 0, resumed.text
    assert resumed.summary["attempts"] == 3
    assert numbers(resumed) == numbers(once)
    assert bits(resumed) == bits(once)
    assert audit(resumed.ledger(), 0) == []


@pytest.mark.slow
def test_two_ranks_that_are_killed_and_stopped_end_with_the_same_bits(tmp_path_factory):
    words = (*WORDS, "actor.backend=fsdp:d2")
    whole = run(with_rows(tmp_path_factory.mktemp("whole")), *words)
    assert whole.code == 0, whole.text
    folder = with_rows(tmp_path_factory.mktemp("stopped"))
    with running(folder, *words) as killed:
        killed.wait_for_step(1)
        killed.kill("trainer/1")
        killed.wait_for_step(3, attempt=2)
        killed.process.send_signal(signal.SIGUSR1)
        assert killed.wait().code == STOPPED_EARLY
    resumed = run(folder, *words)
    assert resumed.code == 0, resumed.text
    assert len(resumed.metric("train/loss")) == 6
    assert numbers(resumed) == numbers(whole)
    assert bits(resumed) == bits(whole)


def test_resuming_by_hand_from_an_earlier_checkpoint_gives_the_same_end_past_an_epoch_end(once):
    rows = [event["row"] for event in once.ledger() if event["event"] == "submitted"]
    assert sorted(rows[:NUM_ROWS]) == list(range(NUM_ROWS)) and len(rows) > NUM_ROWS, "an epoch ends on the way"
    root = Path(once.directory).parents[2]
    weights = bits(once)
    again = run(root, f"resume={once.directory}", "resume_step=3", config=None)
    assert again.code == 0, again.text
    assert bits(again) == weights


def test_two_ranks_start_like_one_and_both_end(once, tmp_path):
    """The first batch is the same, and so are its loss (with its entropy: the rest is 0 on average) and its
    gradient."""
    with running(with_rows(tmp_path), *WORDS, "total_train_steps=3", "actor.backend=fsdp:d2") as going:
        going.wait_for_step(1)
        sockets = listening([going.process.pid, going.launcher(), *going.pids()])
        two = going.wait()
    assert two.code == 0, two.text
    assert len([addresses for addresses in sockets.values() if addresses]) >= 4, "server, controller, two ranks"
    assert open_to_others(sockets) == []

    assert two.metric("reward/mean")[0] == once.metric("reward/mean")[0]
    for name in ("train/loss", "train/grad_norm"):
        assert two.metric(name)[0] == pytest.approx(once.metric(name)[0], rel=1e-4, abs=1e-7), name
    assert len(two.metric("train/loss")) == 3
    logs = {path.name for path in (two.directory / "logs").glob("trainer-*.log")}
    assert logs == {"trainer-0.log", "trainer-1.log"}
    assert (two.model() / "model.safetensors").is_file()
    assert left_behind(two.directory, set()) == []
