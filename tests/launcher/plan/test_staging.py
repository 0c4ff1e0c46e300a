"""The plan leaves new weights room on the servers' GPUs until they are applied, where they are sent there."""

import pytest

from areal_like.process.identity import GPU_SHARE, STAGED_BYTES
from areal_like.serving.engines.engine_site import CONTEXT_BYTES, SPARE_BYTES
from areal_like.weights.buckets import MAX_BUCKET_BYTES, MAX_SENT_BYTES
from areal_like.weights.transfer_path import SHARED_BUFFER_BYTES, SHARED_BUFFERS
from launcher.plan.host import Gpu
from launcher.plan.rank_memory import usable_bytes
from tests.launcher.plan.test_micro_batch_limit import QWEN, autos, machine
from tests.launcher.plan.test_shared_gpu import server_of
from tests.support.planning import GIB, machine_with, of_role, plan_of

SENT = (*QWEN, "actor.weight_update_mode=collective")
EMBEDDING = 151936 * 1024
SIZES = {"vllm": ("vllm.gpu_memory_utilization", "vllm.kv_cache_memory_bytes=1000000000")}
SIZES["sglang"] = ("sglang.mem_fraction_static", "sglang.max_total_tokens=10000")
ENGINES = list(SIZES)


def staged(plan):
    """Of each GPU of a server, as its workers are given it."""
    return int(of_role(plan, "server")[0].env.get(STAGED_BYTES, 0))


def warned(plan):
    return [warning for warning in plan.warnings if "new weights take" in warning]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_room_is_that_of_all_tensors_and_on_a_shared_gpu_of_the_buffers_that_they_come_through(engine):
    plan = plan_of("grpo", *SENT, f"rollout={engine}", host=machine(80, 2))
    assert staged(plan) == server_of(plan).weights + SPARE_BYTES
    shared = plan_of("grpo", *SENT, f"rollout={engine}", host=machine(80))
    assert staged(shared) == staged(plan) + SHARED_BUFFERS * SHARED_BUFFER_BYTES


def test_the_gpus_of_one_server_have_a_share_each_and_collect_a_layer():
    one, two = (
        plan_of(
            "grpo",
            *SENT,
            "rollout=vllm",
            f"rollout.backend=vllm:d1t{count}",
            f"allocation_mode=vllm:d1t{count}+fsdp:d2",
            host=machine(80, 2 + count),
        )
        for count in (1, 2)
    )
    weights, embedding = server_of(one).weights, 2 * EMBEDDING
    assert server_of(two).weights == weights // 2
    assert staged(one) == weights + SPARE_BYTES
    assert embedding > MAX_SENT_BYTES, "a larger tensor has a bucket of its own"
    assert staged(two) == weights // 2 + 2 * embedding + SPARE_BYTES, "a share may be larger by a tensor"


def two_gpus_per_server(*words, gpu_gib=80):
    sizes = "rollout.backend=vllm:d1t2", "allocation_mode=vllm:d1t2+fsdp:d2"
    host = machine(gpu_gib, 4)
    return plan_of("grpo", *QWEN, "rollout=vllm", "actor.weight_update_mode=disk", *sizes, *words, host=host)


def test_files_take_a_bucket_of_the_gpus_of_one_server():
    """Its workers read a share each and pass it on, if the files are not in shared memory."""
    key, usable = "vllm.gpu_memory_utilization", 80 * GIB - CONTEXT_BYTES
    plan = two_gpus_per_server()
    bucket = max(MAX_BUCKET_BYTES, 2 * EMBEDDING)
    lowered = (0.9 - autos(plan)[key].value) * usable
    assert bucket + SPARE_BYTES <= lowered < bucket + SPARE_BYTES + usable / 1000
    assert autos(plan)[key].reason.startswith("0.9 less 553 MiB, which new weights take while they are applied")
    assert any(
        "while they are applied, where their files are not in shared memory" in line for line in plan.memory.words
    )
    assert not staged(plan) and not warned(plan), "none stay there"
    assert autos(two_gpus_per_server("vllm.worker_extension_cls=mine.Extension"))[key].value == 0.9
    float32 = two_gpus_per_server("actor.dtype=float32")
    assert (0.9 - autos(float32)[key].value) * usable >= 4 * EMBEDDING + SPARE_BYTES


@pytest.mark.parametrize("size", ["vllm.gpu_memory_utilization=0.999", "vllm.kv_cache_memory_bytes=82000000000"])
def test_a_size_that_leaves_files_no_room_is_named(size):
    (warning,) = warned(two_gpus_per_server(size))
    assert warning.startswith(size.partition("=")[0] + ": leaves ")
    assert "a server may then end for lack of memory; lower it, or set it to auto" in warning


@pytest.mark.parametrize("engine", ENGINES)
def test_the_room_comes_from_the_share_of_an_engine_with_a_gpu_of_its_own(engine):
    key, _ = SIZES[engine]
    words = f"rollout={engine}", "actor.weight_update_mode="
    plain, sent = (
        plan_of("grpo", *QWEN, *words[:1], words[1] + mode, host=machine(80, 2)) for mode in ("disk", "nccl")
    )
    usable = 80 * GIB - CONTEXT_BYTES
    lowered = (autos(plain)[key].value - autos(sent)[key].value) * usable
    assert staged(sent) <= lowered < staged(sent) + usable / 1000
    assert autos(sent)[key].reason.startswith("0.9 less 1.4 GiB, which new weights take")
    assert not warned(sent) and any("new weights take 1.4 GiB" in line for line in sent.memory.words)


@pytest.mark.parametrize(("engine", "gpu_gib"), [("vllm", 40), ("sglang", 80)])
def test_on_a_shared_gpu_server_new_weights_and_trainer_add_up_to_the_gpu(engine, gpu_gib):
    plain = plan_of("grpo", *QWEN, f"rollout={engine}", host=machine(gpu_gib))
    plan = plan_of("grpo", *SENT, f"rollout={engine}", host=machine(gpu_gib))
    chosen, (model,) = autos(plan), plan.memory.trainer
    cache = chosen.get("vllm.kv_cache_memory_bytes")
    per_token = server_of(plan).kv_bytes_per_token
    cache_bytes = cache.value if cache else chosen["sglang.max_total_tokens"].value * per_token
    working = {"vllm": 2, "sglang": 3}[engine] * GIB
    server_bytes = server_of(plan).weights + working + cache_bytes + staged(plan)
    trainer = model.total + chosen["actor.mb_spec.max_tokens_per_mb"].value * model.activations_per_token
    assert trainer <= usable_bytes(gpu_gib * GIB, server_bytes)
    assert staged(plan) and not warned(plan)
    share = float(of_role(plan, "trainer")[0].env[GPU_SHARE])
    assert trainer < share * gpu_gib * GIB <= gpu_gib * GIB - server_bytes - 2 * CONTEXT_BYTES
    assert GPU_SHARE not in of_role(plain, "trainer")[0].env


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_small_cache_of_the_users_own_leaves_room(engine, gpus):
    plan = plan_of("grpo", *SENT, f"rollout={engine}", SIZES[engine][1], host=machine(80, gpus))
    assert staged(plan) and not warned(plan)


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize(("fraction", "fits"), [(0.5, True), (0.99, False)])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fraction_of_the_users_own_is_kept_and_a_warning_names_it_where_it_leaves_no_room(
    engine, fraction, fits, gpus
):
    key, _ = SIZES[engine]
    plan = plan_of("grpo", *SENT, f"rollout={engine}", f"{key}={fraction}", host=machine(80, gpus))
    assert key not in autos(plan) and bool(staged(plan)) == fits
    if fits:
        assert not warned(plan)
    else:
        (warning,) = warned(plan)
        assert "they go through main memory" in warning
        assert warning.startswith(f"{key}: ") and "; lower it, or " in warning


def test_a_cache_of_the_users_own_that_leaves_no_room_is_named():
    words = ("rollout=vllm", "vllm.kv_cache_memory_bytes=82000000000")
    (warning,) = warned(plan_of("grpo", *SENT, *words, host=machine(80, 2)))
    assert warning.startswith("vllm.kv_cache_memory_bytes: leaves ")


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_do_not_fit_twice_go_through_main_memory_and_cost_no_cache(engine, gpus):
    size = {1: 18, 2: 6}[gpus]
    plain = plan_of("grpo", *QWEN, f"rollout={engine}", host=machine(size, gpus))
    sent = plan_of("grpo", *SENT, f"rollout={engine}", host=machine(size, gpus))
    assert not staged(sent) and all(GPU_SHARE not in each.env for each in sent.processes)
    assert {key: each.value for key, each in autos(sent).items()} == {
        key: each.value for key, each in autos(plain).items()
    }
    (warning,) = warned(sent)
    assert "do not fit beside" in warning and "lower it, or use more or larger GPUs" in warning


MIG = machine_with(2)._replace(gpus=tuple(Gpu(f"MIG-{n}", memory_bytes=40 * GIB) for n in range(2)))


@pytest.mark.parametrize(
    ("words", "host"),
    [
        (("rollout=vllm", "actor.weight_update_mode=disk"), machine(80, 2)),
        (("rollout=vllm", "actor.weight_update_mode=adapter", "actor.use_lora=true"), machine(80, 2)),
        (("rollout=embedded", "actor.weight_update_mode=collective"), machine(80, 2)),
        (("rollout=vllm", "actor.weight_update_mode=collective"), machine(80, 0)),
        (("rollout=vllm", "actor.weight_update_mode=collective"), MIG),
    ],
)
def test_nothing_is_left_where_no_weights_are_sent_to_workers_on_gpus(words, host):
    plan = plan_of("grpo", *QWEN, *words, host=host)
    assert not staged(plan) and not warned(plan)


def test_a_share_of_sglangs_own_choice_is_left_to_the_servers():
    words = ("rollout=sglang", "sglang.mem_fraction_static=null")
    plan = plan_of("grpo", *SENT, *words, host=machine(80, 2))
    assert not staged(plan) and not warned(plan)
    assert "new weights stay on the servers' GPUs if the engine leaves them room" in plan.memory.words


@pytest.mark.parametrize(
    ("words", "gpus", "gpu_gib", "unknown"),
    [
        (("actor.path=some/model", "actor.dtype=bfloat16"), 2, 80, "the size of the model"),
        (QWEN, 2, None, "the memory of the GPUs"),
        ((*QWEN, "actor.use_lora=true", "actor.target_modules=[odd]"), 1, 80, "the size of the adapters"),
    ],
)
def test_what_is_not_known_before_the_start_is_left_to_the_servers(words, gpus, gpu_gib, unknown):
    host = machine(80, gpus)
    if gpu_gib is None:
        host = host._replace(gpus=tuple(gpu._replace(memory_bytes=None) for gpu in host.gpus))
    plan = plan_of("grpo", *words, "rollout=vllm", "actor.weight_update_mode=collective", host=host)
    assert not staged(plan) and not warned(plan)
    assert f"new weights stay on the servers' GPUs if these have room: {unknown} is not known" in plan.memory.words


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_worker_class_of_the_users_own_gets_no_room_that_it_does_not_use(gpus):
    """It receives into main memory."""
    plan = plan_of("grpo", *SENT, "rollout=vllm", "vllm.worker_extension_cls=mine.Extension", host=machine(80, gpus))
    assert not staged(plan) and not warned(plan)
    key = "vllm.gpu_memory_utilization"
    assert gpus == 1 or autos(plan)[key].value == 0.9
