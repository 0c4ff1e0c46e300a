"""The plan counts what the sending of weights takes of the trainer's GPU: a copy where it has room, else buffers."""

import pytest

from areal_like.process.identity import KEEPS_COPY_ON_GPU
from areal_like.weights.transfer_path import NCCL_SLOT_BYTES, NCCL_SLOTS
from launcher.plan.rank_memory import ENOUGH_TOKENS, usable_bytes
from tests.launcher.plan.test_micro_batch_limit import QWEN, autos, machine
from tests.launcher.plan.test_shared_gpu import server_of
from tests.support.planning import GIB, of_role, plan_of

SENT = (*QWEN, "actor.weight_update_mode=collective")


def is_on_gpu(plan):
    return KEEPS_COPY_ON_GPU in of_role(plan, "trainer")[0].env


def limit(plan):
    return autos(plan)["actor.mb_spec.max_tokens_per_mb"]


def test_a_large_gpu_keeps_a_copy_of_the_weights_which_the_micro_batches_leave_room_for():
    plan = plan_of("grpo", *SENT, "rollout=vllm", host=machine(80, 2))
    (model,), copy = plan.memory.trainer, server_of(plan).weights
    assert is_on_gpu(plan) and any("keeps a copy of the weights" in line for line in plan.memory.words)
    taken = model.total + copy + limit(plan).value * model.activations_per_token
    assert taken <= usable_bytes(80 * GIB, 0) and limit(plan).value >= ENOUGH_TOKENS


def test_a_small_gpu_has_buffers_and_they_count():
    """The copy is in main memory."""
    plain, plan = (
        plan_of("grpo", *QWEN, f"actor.weight_update_mode={mode}", "rollout=vllm", host=machine(24, 2))
        for mode in ("disk", "collective")
    )
    assert not is_on_gpu(plan) and NCCL_SLOTS * NCCL_SLOT_BYTES == 128 << 20
    assert any("from main memory, through buffers of 128 MiB of its GPU" in line for line in plan.memory.words)
    assert "128 MiB for weights that are sent" in limit(plan).reason
    assert limit(plan).value <= limit(plain).value
    assert not any("sends weights" in line for line in plain.memory.words)


@pytest.mark.parametrize("words", [("actor.weight_update_mode=disk",), ("cluster.n_gpus_per_node=0",)])
def test_nothing_is_taken_where_nothing_is_sent_between_gpus(words):
    plan = plan_of("grpo", *SENT, "rollout=vllm", *words, host=machine(80, 2))
    assert not is_on_gpu(plan) and not any("sends weights" in line for line in plan.memory.words)
