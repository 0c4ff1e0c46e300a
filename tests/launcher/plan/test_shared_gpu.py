"""One GPU for server and trainer: the server has a planned size and starts first, and the trainer has the rest."""

import pytest

from areal_like.process.identity import START_AFTER
from tests.launcher.plan.test_micro_batch_limit import QWEN, autos, machine
from tests.support.planning import GIB, of_role, plan_of

LONG = "actor=qwen3_0_6b", "gconfig.max_new_tokens=4096"


def flags(plan):
    words = of_role(plan, "server")[0].command
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def server_of(plan):
    assert plan.memory.server is not None
    return plan.memory.server


def test_vllm_gets_the_bytes_of_its_cache():
    plan = plan_of("grpo", *QWEN, "rollout=vllm", host=machine(80))
    given, chosen = flags(plan), autos(plan)
    cache = int(given["--kv-cache-memory-bytes"])
    assert cache == chosen["vllm.kv_cache_memory_bytes"].value == 256 * 1056 * 112 * 1024
    fraction = float(given["--gpu-memory-utilization"])
    weights = server_of(plan).weights
    assert (weights + cache) / (80 * GIB) < fraction < 0.5
    assert "are left for the trainer" in " ".join(plan.memory.words)


def test_sglang_gets_the_tokens_of_its_cache_and_a_fraction_that_holds_them():
    plan = plan_of("grpo", *QWEN, "rollout=sglang", host=machine(80))
    given, server = flags(plan), server_of(plan)
    tokens = int(given["--max-total-tokens"])
    assert tokens == 256 * 1056
    free_at_start = 79 * GIB
    needed = server.weights + tokens * server.kv_bytes_per_token
    assert needed < float(given["--mem-fraction-static"]) * free_at_start < needed + 2 * GIB


@pytest.mark.parametrize("gpu_gib", [1, 0.1])
@pytest.mark.parametrize("rollout", ["embedded", "vllm", "sglang"])
def test_a_gpu_that_is_far_too_small_is_a_warning(rollout, gpu_gib):
    plan = plan_of("grpo", *QWEN, f"rollout={rollout}", host=machine(gpu_gib))
    assert "actor.backend" in " ".join(plan.warnings)
    fractions = [each.value for key, each in autos(plan).items() if key.endswith(("_utilization", "_static"))]
    assert all(fraction == 1.0 for fraction in fractions)


def test_the_embedded_engine_gets_the_tokens_of_its_cache():
    assert autos(plan_of("grpo", *QWEN, host=machine(80)))["embedded.kv_cache_tokens"].value == 256 * 1056


@pytest.mark.parametrize("rollout", ["embedded", "vllm", "sglang"])
def test_a_long_context_leaves_the_trainer_what_it_needs(rollout):
    """Not all sequences fit at once; the trainer still has its models and a micro-batch."""
    plan = plan_of("grpo", *LONG, f"rollout={rollout}", host=machine(24))
    chosen = autos(plan)
    assert chosen["actor.mb_spec.max_tokens_per_mb"].value >= 4096
    reasons = " ".join(each.reason for each in plan.auto)
    assert "256 sequences of 4128 tokens would need more" in reasons


def test_a_cache_holds_a_sequence_of_the_servers_greatest_length():
    """vLLM does not start with less."""
    plan = plan_of("grpo", "actor=qwen3_0_6b", "rollout=vllm", host=machine(80))
    assert int(flags(plan)["--kv-cache-memory-bytes"]) > 32768 * server_of(plan).kv_bytes_per_token


@pytest.mark.parametrize(
    ("rollout", "written", "flag"),
    [
        ("vllm", "vllm.gpu_memory_utilization=0.3", "--gpu-memory-utilization"),
        ("vllm", "vllm.kv_cache_memory_bytes=1000000000", "--kv-cache-memory-bytes"),
        ("sglang", "sglang.mem_fraction_static=0.3", "--mem-fraction-static"),
        ("sglang", "sglang.max_total_tokens=5000", "--max-total-tokens"),
    ],
)
def test_written_sizes_of_a_server_win(rollout, written, flag):
    plan = plan_of("grpo", *QWEN, f"rollout={rollout}", written, host=machine(80))
    key, _, value = written.partition("=")
    assert flags(plan)[flag] == value and key not in autos(plan)


@pytest.mark.parametrize(
    ("written", "server_gib"),
    [
        (("embedded.kv_cache_tokens=150000",), 16),
        (("rollout=vllm", "vllm.kv_cache_memory_bytes=16000000000"), 14.9),
        (("rollout=vllm", "vllm.gpu_memory_utilization=0.6"), 19.2),
        (("rollout=sglang", "sglang.max_total_tokens=200000"), 21.3),
        (("rollout=sglang", "sglang.mem_fraction_static=0.6"), 19.2),
    ],
)
def test_the_trainer_gets_what_a_written_size_leaves(written, server_gib):
    plan = plan_of("grpo", *QWEN, *written, host=machine(32))
    assert plan.memory.trainer_rank_bytes is not None
    (warning,) = [each for each in plan.warnings if each.startswith("actor.backend")]
    size = float(warning.partition("beside the server's ")[2].split()[0])
    assert server_gib <= size < server_gib + 4.5
    assert f"set {written[-1].partition('=')[0]}=auto" in warning


@pytest.mark.parametrize(
    ("rollout", "written", "planned"),
    [
        ("vllm", "vllm.gpu_memory_utilization=0.5", "--kv-cache-memory-bytes"),
        ("sglang", "sglang.mem_fraction_static=0.5", "--max-total-tokens"),
    ],
)
def test_no_planned_cache_replaces_a_written_fraction(rollout, written, planned):
    """vLLM ignores the fraction where it is given the bytes of its cache."""
    assert planned not in flags(plan_of("grpo", *QWEN, f"rollout={rollout}", written, host=machine(80)))


def test_a_cache_of_one_long_sequence_says_so():
    """Samples are short, and the server accepts longer ones."""
    plan = plan_of("grpo", "actor=qwen3_0_6b", "rollout=sglang", host=machine(80))
    assert autos(plan)["sglang.max_total_tokens"].reason == "a sequence of 32768 tokens, the longest that it accepts"


def test_the_plan_says_why_less_than_the_rest_of_the_gpu_is_left():
    (words,) = [
        each for each in plan_of("grpo", *QWEN, host=machine(80)).memory.words if "left for the trainer" in each
    ]
    assert "92% of 80.0 GiB can be used" in words


def test_servers_with_gpus_of_their_own_keep_the_usual_sizes():
    vllm, sglang = (flags(plan_of("grpo", *QWEN, f"rollout={name}", gpus=2)) for name in ("vllm", "sglang"))
    assert vllm["--gpu-memory-utilization"] == sglang["--mem-fraction-static"] == "0.9"
    assert "--kv-cache-memory-bytes" not in vllm and "--max-total-tokens" not in sglang
    assert sglang["--chunked-prefill-size"] == "8192"


def test_a_model_of_unknown_size_shares_by_a_fixed_fraction():
    words = ("actor.path=some/model", "actor.dtype=bfloat16")
    assert flags(plan_of("grpo", *words, "rollout=vllm", gpus=1))["--gpu-memory-utilization"] == "0.4"
    assert flags(plan_of("grpo", *words, "rollout=sglang", gpus=1))["--mem-fraction-static"] == "0.3"


def test_the_trainer_starts_after_the_server_on_its_gpu():
    assert of_role(plan_of("grpo", gpus=1), "trainer")[0].env[START_AFTER] == "server/0"
    for plan in (plan_of("grpo"), plan_of("grpo", gpus=2)):
        assert all(START_AFTER not in process.env for process in plan.processes)
