"""Parameters and memory of trainer ranks and servers, computed from a config.json."""

import json

import pytest

from areal_like.config.number_text import count_text, size_text
from areal_like.models import model_folder as built_in_folder
from areal_like.models.model_shape import shape_of
from launcher.plan.model_config import find_model_config
from launcher.plan.page_locked import allocated
from tests.support.planning import GIB, machine_with, plan_of

QWEN3_06B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
LLAMA31_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN25_15B = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "num_hidden_layers": 28,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_hidden_layers": 48,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN3_06B, 596_049_920),
        (LLAMA31_8B, 8_030_261_248),
        (QWEN25_15B, 1_543_714_304),
        (SMOLLM2_135M, 134_515_008),
        (QWEN3_30B_A3B, 30_532_122_624),
        (MIXTRAL, 46_702_792_704),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameter_counts_match_published_models(config, parameters):
    shape = shape_of(config)
    assert shape is not None
    assert shape.parameters() == parameters


def test_a_compressed_cache_has_its_smaller_size():
    shape = shape_of(DEEPSEEK_V3)
    assert shape is not None
    assert shape.parameters() == pytest.approx(671_026_419_200, rel=1e-6)
    assert shape.kv_per_token == 61 * (512 + 64)


def test_layers_of_linear_attention_have_no_cache():
    kinds = ["linear_attention", "full_attention"] * 14
    shape = shape_of(QWEN3_06B | {"layer_types": kinds})
    assert shape is not None
    assert shape.kv_per_token == 2 * 14 * 8 * 128


def test_a_critic_has_one_output_and_fewer_layers_may_be_kept():
    whole, half = shape_of(LLAMA31_8B), shape_of(LLAMA31_8B, num_layers=16)
    assert whole and half
    assert whole.parameters() - whole.parameters(critic=True) == 128256 * 4096 - 4096
    assert half.layers == 16


@pytest.mark.parametrize("config", [None, {}, {"model_type": "gpt2", "n_embd": 768}, {"hidden_size": "wide"}])
def test_sizes_of_unknown_models_are_not_guessed(config):
    assert shape_of(config) is None


@pytest.mark.parametrize("name", ["vocab_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "64", [], {}, float("nan")])
def test_a_size_that_is_no_positive_integer_is_unknown(name, value):
    assert shape_of(QWEN3_06B | {name: value}) is None


def model_folder(folder, config=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or QWEN3_06B), "utf-8")
    return folder


def test_shapes_are_read_from_a_folder_or_the_cache_or_are_missing(tmp_path):
    host = machine_with()._replace(directory=tmp_path, hub=tmp_path / "hub")
    model_folder(tmp_path / "model")
    cached = tmp_path / "hub" / "models--org--name"
    model_folder(cached / "snapshots" / "aaa", {"old": True})
    model_folder(cached / "snapshots" / "bbb")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("bbb\n", "utf-8")
    assert find_model_config("model", host)[0] == QWEN3_06B
    assert find_model_config(str(tmp_path / "model"), host)[0] == QWEN3_06B
    assert find_model_config("org/name", host)[0] == QWEN3_06B
    content, why = find_model_config("org/other", host)
    assert content is None
    assert why == f"org/other is neither a folder nor in the Hugging Face cache ({host.hub})"
    assert find_model_config("builtin:tiny", host)[0] is None


def test_a_built_in_model_has_the_size_of_its_files():
    (actor,) = plan_of("grpo").memory.trainer
    weights = built_in_folder("builtin:tiny-addition") / "model.safetensors"
    assert 0 < weights.stat().st_size - 4 * actor.parameters < 10_000
    assert actor.path == "builtin:tiny-addition"


def test_an_unknown_built_in_model_is_reported_as_missing():
    plan = plan_of("grpo", "actor.path=builtin:tiny")
    (need,) = [need for need in plan.needs if need.key == "actor.path"]
    known = "builtin:smollm2-135m, builtin:tiny-addition, builtin:tiny-countdown, builtin:tiny-problems, "
    known += "builtin:tiny-programs, builtin:tiny-puzzles, builtin:tiny-tools"
    assert need.message == f"builtin:tiny is not a built-in model. There are: {known}"


def memory_of(tmp_path, *overrides, config=None, gpus=2, experiment="grpo"):
    folder = model_folder(tmp_path / "model", config)
    key = "model.path" if experiment == "sft" else "actor.path"
    dtype = key.replace("path", "dtype")
    return plan_of(experiment, f"{key}={folder}", f"{dtype}=bfloat16", *overrides, gpus=gpus).memory


def test_a_rank_holds_master_weights_gradients_and_two_moments(tmp_path):
    (actor,) = memory_of(tmp_path, "actor.backend=fsdp:d1").trainer
    assert (actor.weights, actor.gradients, actor.optimizer) == (4 * 596_049_920, 4 * 596_049_920, 8 * 596_049_920)
    embedding, logits = 151936 * 1024, 1 << 28
    assert actor.working == 2 * (embedding + 1024) + 8 * logits + (4 + 2) * embedding


def test_where_a_layer_is_larger_than_the_logits_it_decides_the_working_memory(tmp_path):
    limited = ("actor.backend=fsdp:d2", "actor.mb_spec.max_tokens_per_mb=8")
    shape = LLAMA31_8B | {"vocab_size": 32000}
    (actor,) = memory_of(tmp_path, *limited, config=shape, gpus=4).trainer
    hidden, root = 4096, 2 * 32000 * 4096 + 4096
    layer = 2 * hidden * hidden + 2 * hidden * 1024 + 3 * hidden * 14336 + 2 * hidden
    assert actor.working == 2 * root + 2 * (2 * layer + root) + layer * (2 + 4 + 2)


def test_several_ranks_keep_whole_gradients_only_where_asked(tmp_path):
    one, each, whole = (
        memory_of(tmp_path, *words, gpus=8).trainer[0].gradients
        for words in (
            ["actor.backend=fsdp:d1"],
            ["actor.backend=fsdp:d4"],
            ["actor.backend=fsdp:d4", "actor.fsdp.reduce_gradients=per_step"],
        )
    )
    assert (each, whole) == (one // 4, one)


def test_activations_per_token_depend_on_what_is_recomputed_or_moved(tmp_path):
    """Qwen3-0.6B in bfloat16: 71,744 bytes per layer and token."""
    layer, hidden = 71_744, 1024
    end, gradients = 8 * hidden + 4 * hidden, 4 * 3072 + 8 * hidden
    expected = {
        "actor.gradient_checkpointing=false": 28 * layer + end + gradients,
        "actor.gradient_checkpointing=true": 28 * 2 * hidden + end + gradients + layer,
    }
    for override, size in expected.items():
        assert memory_of(tmp_path, override).trainer[0].activations_per_token == size
    more = ("actor.gradient_checkpointing=true", "actor.activation_checkpointing.freq=2")
    assert memory_of(tmp_path, *more).trainer[0].activations_per_token == (
        14 * (2 * hidden + layer) + end + gradients + layer
    )
    moved = ("actor.gradient_checkpointing=false", "actor.activation_offloading.pin_memory=true")
    assert memory_of(tmp_path, *moved).trainer[0].activations_per_token == end + gradients + layer


def test_models_of_a_rank_compute_one_after_the_other(tmp_path):
    memory = memory_of(tmp_path, "actor.kl_ctl=0.1", "actor.backend=fsdp:d1")
    actor, ref = memory.trainer
    assert memory.trainer_rank_bytes == actor.total + ref.weights < actor.total + ref.total


def test_ranks_share_memory_that_fsdp_and_tensor_parallelism_split(tmp_path):
    one = memory_of(tmp_path, "actor.backend=fsdp:d1").trainer[0]
    four = memory_of(tmp_path, "actor.backend=fsdp:d2t2", gpus=8).trainer[0]
    assert four.weights == one.weights // 4
    replicated = memory_of(tmp_path, "actor.backend=fsdp:d4", "actor.fsdp.dp_replicate=2", gpus=8).trainer[0]
    assert replicated.weights == one.weights // 2


@pytest.mark.parametrize(
    ("overrides", "per_parameter"),
    [
        (["actor.optimizer.type=adam"], 8),
        (["actor.optimizer.type=adam_bf16"], 4),
        (["actor.optimizer.type=sgd"], 4),
        (["actor.optimizer.type=sgd", "actor.optimizer.momentum=0"], 0),
        (["actor.master_dtype=bfloat16"], 4),
    ],
)
def test_the_optimizer_decides_its_memory(tmp_path, overrides, per_parameter):
    (actor,) = memory_of(tmp_path, "actor.backend=fsdp:d1", *overrides).trainer
    assert actor.optimizer == per_parameter * 596_049_920


def test_muon_keeps_one_buffer_for_matrices_and_two_for_the_embedding(tmp_path):
    (actor,) = memory_of(tmp_path, "actor.backend=fsdp:d1", "actor.optimizer.type=muon").trainer
    assert actor.optimizer == 4 * (596_049_920 + 151936 * 1024)


def test_only_adapters_are_trained_with_lora(tmp_path):
    (actor,) = memory_of(tmp_path, "actor.backend=fsdp:d1", "actor.use_lora=true", "actor.lora_rank=16").trainer
    per_layer = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072)
    assert actor.trainable == 16 * 28 * per_layer
    assert actor.weights == 2 * 596_049_920 + 4 * actor.trainable
    assert actor.optimizer == 8 * actor.trainable


def test_a_reference_model_is_frozen_and_counted_only_where_used(tmp_path):
    assert len(memory_of(tmp_path, "actor.kl_ctl=0").trainer) == 1
    actor, ref = memory_of(tmp_path, "actor.kl_ctl=0.1", "actor.backend=fsdp:d1").trainer
    assert (ref.model, ref.gradients, ref.optimizer) == ("ref", 0, 0)
    assert ref.weights == 2 * 596_049_920
    assert actor.total > ref.total


def test_a_critic_is_counted(tmp_path):
    models = [model.model for model in memory_of(tmp_path, experiment="ppo").trainer]
    assert models[0] == "actor"
    assert "critic" in models


def test_the_cache_of_a_server_per_token(tmp_path):
    server = memory_of(tmp_path, "gconfig.max_tokens=1000").server
    assert server.kv_bytes_per_token == 2 * 28 * 8 * 128 * 2
    assert server.kv_bytes_longest_sample == 1000 * server.kv_bytes_per_token


def test_tensor_parallel_servers_share_the_cache_by_heads(tmp_path):
    half = memory_of(tmp_path, "rollout.backend=vllm:d1t2", gpus=4).server
    assert half.kv_bytes_per_token == 28 * 8 * 128 * 2
    assert half.weights == 596_049_920


def test_a_small_cache_type_of_sglang(tmp_path):
    server = memory_of(tmp_path, "rollout.backend=sglang", "sglang.kv_cache_dtype=fp8_e5m2").server
    assert server.kv_bytes_per_token == 2 * 28 * 8 * 128


def test_attached_servers_are_not_counted(tmp_path):
    assert memory_of(tmp_path, "rollout.server_addresses=['h:1']").server is None


def test_too_little_memory_is_a_warning(tmp_path):
    folder = model_folder(tmp_path / "big", QWEN3_30B_A3B)
    overrides = (f"actor.path={folder}", "actor.dtype=bfloat16", "actor.backend=fsdp:d1", "rollout.backend=vllm:d1")
    plan = plan_of("grpo", *overrides, gpus=2)
    assert any(warning.startswith("actor.backend: a trainer rank needs") for warning in plan.warnings)
    assert not any("rollout.backend: a server's weights" in warning for warning in plan.warnings)
    cpu = plan_of("grpo", f"actor.path={folder}", gpus=0)
    (need,) = [need.message for need in cpu.needs if "before caches and activations" in need.message]
    assert need.startswith("1 embedded server and 1 trainer rank need") and "this machine has 64.0 GiB" in need


def test_more_context_than_positions_is_a_warning(tmp_path):
    folder = model_folder(tmp_path / "m", QWEN3_06B | {"max_position_embeddings": 2048})
    words = (f"actor.path={folder}", "rollout.backend=vllm")
    plan = plan_of("grpo", *words, "vllm.max_model_len=4096", gpus=2)
    assert any(warning.startswith("vllm.max_model_len: 4096 is more than the 2048") for warning in plan.warnings)
    fitted = plan_of("grpo", *words, gpus=2)
    assert not any(warning.startswith("vllm.max_model_len") for warning in fitted.warnings)
    assert ("vllm.max_model_len", 2048) in [(result.key, result.value) for result in fitted.auto]


@pytest.mark.parametrize("experiment", ["sft", "reward_model"])
def test_rows_that_may_be_longer_than_the_models_positions_are_a_warning(experiment):
    def warned(length):
        return [each for each in plan_of(experiment, f"train_dataset.max_length={length}").warnings if "long" in each]

    (warning,) = warned(100)
    assert warning.startswith("train_dataset.max_length") and "64 positions: longer rows" in warning
    assert warned(64) == []


def test_sizes_are_formatted_for_reading():
    assert [size_text(size) for size in (512, 2048, 3 << 20, 12 * GIB + (GIB >> 1), 300 * GIB)] == [
        "512 B",
        "2.0 KiB",
        "3.0 MiB",
        "12.5 GiB",
        "300 GiB",
    ]
    assert [count_text(number) for number in (12, 119_232, 596_049_920, 8_030_261_248)] == [
        "12",
        "119 k",
        "596 M",
        "8.03 B",
    ]


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        (["rollout=vllm"], 32768),
        (["rollout=vllm", "vllm.max_model_len=null"], 40960),
        (["rollout=sglang", "sglang.context_length=500"], 500),
        (["rollout=embedded", "embedded.context_length=600"], 600),
        (["rollout=embedded", "gconfig.max_tokens=100"], 100),
    ],
)
def test_the_longest_sequence_is_the_limit_of_the_server(tmp_path, overrides, limit):
    server = memory_of(tmp_path, *overrides).server
    assert server.kv_bytes_longest_sample == limit * server.kv_bytes_per_token


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["rollout=vllm"], "vllm.max_model_len: a sample may have 65536"),
        (["rollout=vllm", "train_dataset.max_length=100"], ""),
        (["rollout=vllm", "vllm.max_model_len=null"], "gconfig.max_tokens: a sample may have 65536"),
        (["rollout=embedded"], "gconfig.max_tokens: a sample may have 65536"),
        (["rollout=embedded", "gconfig.max_tokens=40960"], ""),
    ],
)
def test_prompts_too_long_for_the_server_are_a_warning(tmp_path, overrides, key):
    folder = model_folder(tmp_path / "m")
    plan = plan_of("grpo", f"actor.path={folder}", "train_dataset.max_length=null", *overrides, gpus=2)
    result = [warning for warning in plan.warnings if "a sample may have" in warning]
    assert len(result) == bool(key)
    assert all(warning.startswith(key) for warning in result)


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["rollout=embedded", "gconfig.max_new_tokens=40960"], "the 40960 positions"),
        (["rollout=embedded", "gconfig.max_new_tokens=40959"], ""),
        (["rollout=embedded", "embedded.context_length=6"], "(embedded.context_length)"),
        (["rollout=vllm", "gconfig.max_new_tokens=32768"], "32768 (vllm.max_model_len)"),
        (["rollout=vllm", "vllm.max_model_len=null", "gconfig.max_new_tokens=32768"], ""),
        (["rollout=sglang", "sglang.context_length=500", "gconfig.max_new_tokens=500"], "500 (sglang.context_length)"),
        (["rollout.server_addresses=['h:1']", "gconfig.max_new_tokens=50000"], "the 40960 positions"),
    ],
)
def test_answers_that_leave_no_room_for_a_prompt_prevent_a_start(tmp_path, overrides, where):
    plan = plan_of("grpo", f"actor.path={model_folder(tmp_path / 'm')}", *overrides, gpus=2)
    reasons = [one.message for one in plan.cannot_start if one.key == "gconfig.max_new_tokens"]
    assert len(reasons) == bool(where)
    assert all("leave no room for a prompt" in reason and where in reason for reason in reasons)


def test_a_model_with_fewer_positions_than_an_engines_default_lowers_it(tmp_path):
    folder = model_folder(tmp_path / "m", QWEN3_06B | {"max_position_embeddings": 2048})
    words = ("rollout=vllm", f"actor.path={folder}", "gconfig.max_new_tokens=4096")
    (reason,) = [one.message for one in plan_of("grpo", *words, gpus=2).cannot_start if one.key.startswith("gconfig")]
    assert "the 2048 positions" in reason


def test_offloaded_values_count_as_host_memory(tmp_path):
    base = ("actor.backend=fsdp:d1",)
    plain = memory_of(tmp_path, *base).trainer[0]
    moments = memory_of(tmp_path, *base, "actor.optimizer.offload=true")
    (actor,) = moments.trainer
    assert (actor.host, actor.total) == (plain.optimizer, plain.total - plain.optimizer)
    assert "and in host memory optimizer 4.4 GiB = 4.4 GiB" in moments.words[0]
    (actor,) = memory_of(tmp_path, *base, "actor.fsdp.offload_params=true").trainer
    assert (actor.host, actor.total) == (plain.weights + plain.gradients + plain.optimizer, plain.working)
    (actor,) = memory_of(tmp_path, "actor.fsdp.offload_params=true", gpus=0).trainer
    assert actor.host == 0


def test_all_sets_of_weights_of_a_server_are_named(tmp_path):
    text = "server: weights 1.1 GiB and as much for the next version, together 2.2 GiB; cache"
    assert any(word.startswith(text) for word in memory_of(tmp_path).words)
    for own in ("rollout=vllm", "actor.weight_update_mode=adapter"):
        words = memory_of(tmp_path, own, *(["actor.use_lora=true"] if "adapter" in own else [])).words
        assert any(word.startswith("server: weights 1.1 GiB; cache") for word in words), words


def test_page_locked_memory_is_counted_in_powers_of_two(tmp_path):
    base = ("actor.backend=fsdp:d1",)
    assert [allocated(size) for size in (0, 1, 2, 3, 1 << 20, (1 << 20) + 1)] == [0, 1, 2, 4, 1 << 20, 1 << 21]
    offloaded = memory_of(tmp_path, *base, "actor.fsdp.offload_params=true")
    # 151936 x 1024 numbers take 593 MiB, and 3072 x 1024 take 12; those of attention are powers of two.
    of_weights = 4 * ((1 << 28) - 151936 * 1024 + 28 * 3 * ((1 << 22) - 3072 * 1024))
    assert offloaded.trainer[0].rounding == 2 * of_weights, "weights and gradients"
    assert "more, as page-locked memory is allocated in powers of two" in offloaded.words[0]
    (actor,) = memory_of(tmp_path, *base, "actor.optimizer.offload=true").trainer
    assert actor.rounding == pytest.approx(2 * of_weights, rel=1e-3), "two moments"
    moved = ("actor.mb_spec.max_tokens_per_mb=1000", "actor.activation_offloading.pin_memory={}")
    exact, rounded = (
        memory_of(tmp_path, *base, moved[0], moved[1].format(value), "actor.gradient_checkpointing=false").trainer[0]
        for value in ("false", "true")
    )
    assert exact.host_activations == 28 * 71_744 * 1000 < rounded.host_activations < 2 * exact.host_activations
    assert memory_of(tmp_path, *base, *moved[:1], moved[1].format("true"), gpus=0).trainer[0].host_activations == 0


def test_adapters_of_unknown_modules_have_no_size(tmp_path):
    lora = ("actor.backend=fsdp:d1", "actor.use_lora=true")
    assert memory_of(tmp_path, *lora, "actor.target_modules=[all-linear]").trainer == memory_of(tmp_path, *lora).trainer
    memory = memory_of(tmp_path, *lora, "actor.target_modules=[q_proj,nope]")
    assert (memory.trainer, memory.trainer_rank_bytes) == ((), None)
    assert "nope" in memory.unknown[0]
    plan = plan_of("grpo", "actor.use_lora=true", "actor.target_modules=[q_proj,nope]")
    assert any(warning.startswith("actor.target_modules: nope is unknown") for warning in plan.warnings)


def test_a_reference_that_is_the_actor_without_its_adapter_takes_no_memory():
    base = ("actor.kl_ctl=0.1", "actor.use_lora=true")
    plan = plan_of("grpo", *base)
    assert [model.model for model in plan.memory.trainer] == ["actor"]
    assert plan.memory.words[0].startswith("ref: the actor with its adapter disabled")
    for own in ("ref.dtype=bfloat16", "actor.use_lora=false"):
        other = plan_of("grpo", *base, "actor.dtype=float32", own)
        assert [model.model for model in other.memory.trainer] == ["actor", "ref"]
        assert not [word for word in other.memory.words if "switched off" in word]


def test_host_memory_of_a_checkpoint_is_kept_where_there_are_gpus():
    on_cpu, on_gpu = (" ".join(plan_of("sft", host=machine_with(gpus, 32)).memory.words) for gpus in (0, 1))
    assert "while a checkpoint is written rank 0 has" in on_cpu and "from its first checkpoint on" not in on_cpu
    assert "from its first checkpoint on rank 0 has" in on_gpu
