"""Weights broadcast by the trainer to real servers, alone and in whole runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from areal_like.discovery import open_name_store, parse_entry
from areal_like.models import model_folder
from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.identity import ATTEMPT, INCARNATION, PROCESS, RUN_DIR, TOKEN, Identity
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.errors import GroupBroken
from areal_like.weights.flat_buckets import FlatWeights, flatten
from areal_like.weights.index import dump_index
from areal_like.weights.probe import Probe
from areal_like.weights.rendezvous import Rendezvous
from tests.ring.server import CONTROLLER, MODEL, SECRET, Server, serving
from tests.ring.start import SHORT, environment, run, running, wait_until_gone
from tests.support.weights_group import BackgroundCall
from tests.support.weights_group import Process as Member

pytestmark = pytest.mark.xdist_group("ring-4")

PROBE = [5, 9, 13, 20, 7]
BUCKET = 300_000
WAYS = ("collective", "disk")


def weights(server: Server, version: int) -> FlatWeights:
    """Of a trainer; they differ from version to version."""
    model = AutoModelForCausalLM.from_pretrained(model_folder(MODEL))
    with torch.no_grad():
        model.model.norm.weight.mul_(1 + version / 10)
    probe = Probe(PROBE, LLMEngine(model).logprobs(PROBE))
    tensors = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    return flatten(version, tensors, probe, server.run.run_id, max_bucket_bytes=BUCKET)


def body(flat: FlatWeights, rendezvous: Rendezvous) -> dict[str, Any]:
    facts = {"version": flat.index.version, "transport": "collective", "folder": None, "mode": "keep"}
    return {
        **facts,
        "index": dump_index(flat.index),
        "meeting": rendezvous._asdict(),
        "probe": dump_index(flat.index)["probe"],
    }


class Trainer:
    """In the test's own process; it speaks to servers as the controller would, too."""

    def __init__(self) -> None:
        self.host = BroadcastHost("127.0.0.1", 0)
        self._number = 0

    def rendezvous(self, world: int) -> Rendezvous:
        self._number += 1
        return Rendezvous(self.host.host, self.host.port, f"g{self._number}", "gloo", 1, world, 60.0)

    def give(self, server: Server, flat: FlatWeights) -> Any:
        """What the server says in the end, or refuses by."""
        rendezvous = self.rendezvous(2)
        staged = BackgroundCall(lambda: call(server, "stage_weights", body(flat, rendezvous)))
        broken = send(self.host, rendezvous, flat)
        answer = staged.wait()
        if isinstance(answer, Exception):
            assert broken is None or isinstance(broken, GroupBroken)
            return answer
        assert answer == {"staged": flat.index.version}
        return call(server, "commit_weights", {"version": flat.index.version, "mode": "keep"})


def send(host: BroadcastHost, rendezvous: Rendezvous, flat: FlatWeights) -> GroupBroken | None:
    try:
        with host.open(rendezvous) as group:
            group.join()
            for content in flat.contents:
                group.send(content)
    except GroupBroken as broken:
        return broken
    return None


def call(server: Server, what: str, content: object) -> Any:
    """On a separate connection, so that several can wait."""
    caller = BlockingHttpClient(CONTROLLER, SECRET)
    try:
        return caller.json("POST", server.address, f"/control/{what}", content)
    except (HttpError, Unreachable) as fault:
        return fault
    finally:
        caller.close()


def serves(server: Server) -> int:
    """The version, of which all tensors and all answers are."""
    state = server.call("GET", "/control/fingerprint")
    flat = weights(server, state["version"])
    assert state["tensors"] == {info.name: info.hash for info in flat.index.tensors}
    sampling = {"temperature": 1.0, "max_new_tokens": 8}
    group = {"id": "g", "prompt": [3, 4, 12, 5, 6, 13], "n": 2, "seed": 1, "sampling": sampling}
    samples = server.call("POST", "/generate", {"groups": [group]})["samples"]
    assert {version for sample in samples for version in sample["versions"]} == {state["version"]}
    return int(state["version"])


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    trainer = Trainer()
    yield trainer
    trainer.host.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, trainer: Trainer) -> Iterator[Server]:
    """It serves version 3 of the weights."""
    with serving(tmp_path_factory.mktemp("collective") / "run") as started:
        done = trainer.give(started, weights(started, 3))
        assert done["version"] == 3
        assert done["read_back"] == {"covered": done["tensors"], "uncovered": []}
        probe = weights(started, 3).index.probe
        assert probe is not None and done["probe_logprobs"] == pytest.approx(probe.logprobs, abs=1e-4)
        yield started


def test_a_bucket_that_is_corrupted_on_the_way_is_refused_by_its_tensor(server: Server, trainer: Trainer) -> None:
    flat = weights(server, 4)
    flat.contents[-1][-1] ^= 1
    refusal = trainer.give(server, flat)
    assert isinstance(refusal, HttpError) and refusal.status == 409
    assert "version 4 of the weights: tensor model." in refusal.message and "is corrupted" in refusal.message
    assert serves(server) == 3


def test_a_stale_version_and_one_without_a_layer_are_refused_before_sending(server, trainer) -> None:
    stale = weights(server, 2)
    refusal = call(server, "stage_weights", body(stale, trainer.rendezvous(2)))
    assert refusal.status == 409 and "version 2 of the weights is not newer than 3" in refusal.message
    shallow = body(weights(server, 4), trainer.rendezvous(2))
    tensors = [each for each in shallow["index"]["tensors"] if ".layers.2." not in each["name"]]
    shallow["index"] = {**shallow["index"], "tensors": tensors}
    refusal = call(server, "stage_weights", shallow)
    assert refusal.status == 409 and "version 4 of the weights: layer 2: 11 tensors are missing" in refusal.message
    assert serves(server) == 3


def test_weights_that_were_not_staged_cannot_be_committed(server: Server) -> None:
    refusal = call(server, "commit_weights", {"version": 9, "mode": "keep"})
    assert refusal.status == 410 and "version 9 of the weights was not staged here" in refusal.message
    assert serves(server) == 3


def test_a_trainer_that_is_killed_in_the_middle_leaves_the_old_weights_in_use(server: Server) -> None:
    stuck = Member("stick", world=2)
    rendezvous = Rendezvous("127.0.0.1", stuck.port, "g", "gloo", 1, 2, 60.0)
    staging = BackgroundCall(lambda: call(server, "stage_weights", body(weights(server, 5), rendezvous)))
    stuck.until_met()
    stuck.kill()
    refusal = staging.wait()
    assert isinstance(refusal, HttpError) and refusal.status == 503
    assert "process 1 of 1 of the servers could not receive" in refusal.message
    assert serves(server) == 3


@contextmanager
def another(server: Server, index: int) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    """A second server of the same run."""
    directory = server.run.directory
    ours = {PROCESS: f"server/{index}", TOKEN: SECRET, ATTEMPT: "1", INCARNATION: "1", RUN_DIR: str(directory)}
    words = [
        sys.executable,
        "-m",
        "areal_like.serving",
        "--run-dir",
        str(directory),
        "--index",
        str(index),
    ]
    with (directory / f"server-{index}.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment(directory, **ours), stdout=log, stderr=log)
    try:
        with open_name_store(server.run, Identity("test", 1)) as names:
            address = parse_entry(names.wait(f"server/{index}", NamedWait("the server", 90, "this test"))).address
        caller = BlockingHttpClient(CONTROLLER, SECRET)
        yield Server(server.run, caller, address), process
        caller.close()
    finally:
        process.kill()
        process.wait()


def test_after_a_server_is_killed_in_a_transfer_the_other_keeps_the_old_weights(
    server: Server, trainer: Trainer
) -> None:
    flat = weights(server, 6)
    with another(server, 1) as (dies, process):
        rendezvous = trainer.rendezvous(3)
        stays_body, dies_body = body(flat, rendezvous), body(flat, rendezvous._replace(first_rank=2))
        stays = BackgroundCall(lambda: call(server, "stage_weights", stays_body))
        dying = BackgroundCall(lambda: call(dies, "stage_weights", dies_body))
        with trainer.host.open(rendezvous) as group:
            group.join()
            group.send(flat.contents[0])
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            with pytest.raises(GroupBroken, match=r"of the servers is gone|could not send"):
                for content in flat.contents[1:]:  # what comes in another order ends gloo in the one that stays
                    group.send(content)
            assert isinstance(dying.wait(120), Unreachable)
        assert stays.wait(120).status == 503
    assert serves(server) == 3
    assert trainer.give(server, flat)["version"] == 6
    assert serves(server) == 6


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_completes_with_broadcast_weights(tmp_path: Path, ranks: int) -> None:
    more = [f"actor.backend=fsdp:d{ranks}"] if ranks > 1 else []
    steps = ("total_train_steps=4", "evaluator.freq_steps=2", "actor.weight_update_mode=collective", *more)
    ended = run(tmp_path, *SHORT, *steps)
    assert ended.code == 0, ended.text
    assert ended.summary["steps"] == 4
    assert {1.0} == set(ended.metric("perf/read_back_share"))
    assert not list((ended.directory / "weights").glob("v*"))
    assert "without files" in (ended.directory / "logs" / "trainer-0.log").read_text()
    assert wait_until_gone(ended.directory) == {}


@pytest.mark.slow
def test_training_does_not_depend_on_the_weight_transport(tmp_path: Path) -> None:
    words = (*SHORT, "total_train_steps=2", "evaluator.freq_steps=null", "max_head_offpolicyness=0")
    losses = []
    for way in WAYS:
        ended = run(tmp_path, *words, f"actor.weight_update_mode={way}", trial=way)
        assert ended.code == 0, ended.text
        losses.append(ended.metric("train/loss"))
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_server_that_is_killed_and_replaced_gets_weights_and_the_run_ends_well(tmp_path: Path) -> None:
    words = ("total_train_steps=30", "evaluator.freq_steps=null", "actor.weight_update_mode=collective")
    with running(tmp_path, *SHORT, *words, "rollout.backend=embedded:d2") as ring:
        ring.wait_for_step(3)
        ring.kill("server/1")
        ended = ring.wait()
    assert ended.code == 0, ended.text
    lines = [json.loads(line) for line in (ended.directory / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 30
    assert {line["attempt"] for line in lines} == {1}
