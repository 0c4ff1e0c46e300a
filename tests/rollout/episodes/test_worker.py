"""The worker: leases become trajectories, many at once, and no result is sent twice or lost."""

import asyncio

import numpy as np
import pytest

from areal_like.config.load import load
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.process.errors import TimedOut
from areal_like.process.identity import Identity, call_headers
from areal_like.rollout.episodes.generation_client import Superseded
from areal_like.rollout.episodes.main import max_in_flight
from tests.support.episode_parts import VALID_ROW, Rewards, one, open_worker, runner
from tests.support.ring_parts import SECRET, Server, lease, open_controller


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path)


def test_a_lease_becomes_a_group_of_trajectories(run):
    def leases(address):
        return [lease(2, address, n=3, row=7, order={"key": "3.1", "place": 0, "of": 1})]

    server = Server([2, 6, 8, 1])
    done = run(leases, server)
    (group,) = server.requests[0]
    assert (group["n"], group["seed"], group["order"]) == (3, 1002, {"key": "3.1", "place": 0, "of": 1})
    assert group["sampling"] == leases("")[0]["sampling"]
    trajectories = done.trajectories["2.1"]
    assert len(trajectories) == 3
    first = trajectories[0]
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    prompt = tokenizer.decode(group["prompt"])
    assert prompt.endswith("=") and tokenizer.decode(first.token_ids) == prompt + "046"
    assert first.loss_mask.tolist() == [0] * 6 + [1] * 4
    assert first.versions.tolist() == [-1] * 6 + [3] * 4
    assert np.allclose(first.logprobs, [0] * 6 + [-0.5] * 4)
    assert (first.finish, set(first.rewards)) == ("stop", {"digits", "exact", "score"})
    assert first.reward == pytest.approx(first.rewards["digits"] + first.rewards["exact"])
    result = done.results["2.1"]
    assert result["status"] == "done" and set(result["timings"]) == {"generate_s", "reward_s", "total_s"}


@pytest.mark.parametrize("workflow", ["Refuses", "Long", "Raises"])
def test_the_groups_of_a_synchronous_step_do_not_wait_for_one_that_generates_nothing(run, workflow):
    order = {"key": "3.1", "place": 1, "of": 2}
    server = Server()
    done = run(lambda address: [lease(2, address, n=3, order=order)], server, workflow)
    assert [(group["n"], group["order"]) for (group,) in server.requests] == [(0, order)]
    assert done.results["2.1"]["status"] == ("rejected" if workflow == "Refuses" else "failed")


def test_a_truncated_answer_is_marked_and_keeps_all_its_tokens(run):
    done = run(one, Server([2, 6, 8, 2, 6, 8]))
    trajectory = done.trajectories["0.1"][0]
    assert (trajectory.finish, len(trajectory.token_ids), trajectory.rewards["score"]) == ("length", 12, 0.0)


def test_an_evaluation_uses_the_rows_and_sampling_of_its_lease(run):
    greedy = {"temperature": 0.0, "greedy": True, "max_new_tokens": 4, "max_tokens": 64, "stop_token_ids": []}
    server = Server()
    run(lambda address: [lease(0, address, purpose="eval", split="valid", n=1, sampling=greedy)], server)
    (group,) = server.requests[0]
    assert group["sampling"] == greedy and group["n"] == 1
    assert TextTokenizer(model_folder("builtin:tiny-addition")).decode(group["prompt"]) == VALID_ROW["prompt"]


def test_many_leases_run_at_once_and_are_reported_together(run):
    server = Server()
    done = run(lambda address: [lease(number, address) for number in range(60)], server, max_in_flight=20)
    assert len(done.results) == 60 and all(result["status"] == "done" for result in done.results.values())
    assert max(done.wants) == max(len(groups) for groups in server.requests) == 20
    assert len(server.requests) <= 30 and done.num_finishes <= 30


def test_cancelled_leases_are_dropped_also_while_nothing_finishes(run, monkeypatch):
    monkeypatch.setattr("areal_like.rollout.episodes.worker.REPORT_INTERVAL_S", 0.05)
    server = Server()
    server.gate = asyncio.Event()

    async def meanwhile(controller, server, worker):
        while not server.requests:
            await asyncio.sleep(0.01)
        controller.void = ["0.1"]
        while not server.disconnected:
            await asyncio.sleep(0.01)

    done = run(one, server, max_in_flight=1, meanwhile=meanwhile)
    assert not done.results


def test_half_a_character_in_an_error_fails_its_group_alone(run, caplog):
    done = run(lambda address: [lease(number, address) for number in range(2)], workflow="Half")
    assert [result["status"] for result in done.results.values()] == ["failed"] * 2
    assert all(result["error"].endswith("ValueError: no tool named ?") for result in done.results.values())
    assert "Traceback" in caplog.text and caplog.text.encode()


def test_failures_of_the_rewards_of_benchmarks_are_counted_too(run):
    own = Rewards()
    own.counts.errors, own.counts.timeouts = 3, 2
    done = run(one, own_rewards={"benchmark/own": own})
    assert (done.counts["errors"], done.counts["timeouts"]) == (3, 2)


def test_each_stage_is_traced_if_configured(run, caplog):
    caplog.set_level("INFO")
    run(one)
    assert not [line for line in caplog.messages if "lease 0.1" in line]
    run(one, is_traced=True)
    lines = [line for line in caplog.messages if line.startswith("lease 0.1")]
    assert [line.split()[2] for line in lines] == ["starts:", "requests", "got", "requests", "got", "ends:"]


def test_a_lost_server_is_replaced_by_the_controllers_choice(run):
    server = Server()

    async def meanwhile(controller, server, worker):
        controller.servers = ["wait", server.address]

    def leases(address):
        return [lease(0, "127.0.0.1:1")]

    done = run(leases, server, meanwhile=meanwhile, retries=1)
    assert done.results["0.1"]["status"] == "done"


def test_a_lost_controller_is_awaited_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("areal_like.rollout.episodes.controller_client.RETRY_DELAY_S", 0.01)

    async def main():
        async with open_worker(tmp_path, "127.0.0.1:1", limit_s=0.2) as worker:
            await worker.work()

    with pytest.raises(TimedOut, match=r"rollout.setup_timeout: waited .* for the controller to answer again"):
        asyncio.run(main())


@pytest.mark.parametrize("seen", [Identity("episodes", 0, 2, 1), Identity("episodes", 0, 1, 2)])
def test_a_worker_that_was_replaced_ends(tmp_path, seen):
    async def main():
        async with open_controller([]) as controller:
            controller.guard.refuse(call_headers(seen, SECRET))
            async with open_worker(tmp_path, controller.address) as worker:
                await worker.work()

    with pytest.raises(Superseded):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluator.freq_steps=null"], 64),
        (["evaluator.freq_steps=null", "rollout.max_concurrent_rollouts=10", "rollout.num_episode_workers=3"], 4),
        (["n_samples=8"], 64 + 64 * 8),
        (["n_samples=8", "evaluator.n_samples=4", "rollout.num_episode_workers=2"], (64 + 128) // 2),
    ],
)
def test_groups_and_evaluated_rows_under_way_are_shared_between_the_workers(words, expected):
    settled = ["rollout.num_episode_workers=1", "rollout.backend=embedded:d1"]
    assert max_in_flight(load("grpo.yaml", [*settled, *words]).config) == expected
