"""The command lines of vLLM and SGLang: the flag of each key."""

from copy import deepcopy
from dataclasses import replace

import pytest

from areal_like.serving.engines.registry import engine_spec
from launcher.plan.processes import ServerSite, flag
from tests.support.planning import BIG_MODEL, loaded, of_role, plan_of

ON_GPU = ServerSite(0, "127.0.0.1", 0, "/runs/x/r0001", "some/model", True, 2, 1, (), "/env/bin/python")


def server_of(*overrides, gpus=2, index=0):
    """Behind its server process."""
    server = of_role(plan_of("grpo", *BIG_MODEL, *overrides, gpus=gpus), "server")[index]
    return replace(server, command=server.command[server.command.index("--") + 1 :])


def with_value(section, name, value):
    """The flags of a server on a GPU when one key of its section is set."""
    config = deepcopy(loaded("grpo", *BIG_MODEL).config)
    assert hasattr(getattr(config, section), name)
    setattr(getattr(config, section), name, value)
    command = engine_spec(section).command
    assert command is not None
    return flags(command(config, ON_GPU).command)


def flags(command):
    """`--a 1 --b --c 2 3` -> {"a": "1", "b": True, "c": ["2", "3"]}"""
    result: dict[str, list[str]] = {}
    name = ""
    for word in command[3:]:
        if word.startswith("--"):
            name = word[2:]
            result[name] = []
        else:
            result[name].append(word)
    return {key: True if not values else values[0] if len(values) == 1 else values for key, values in result.items()}


def vllm(*overrides, **rest):
    return flags(server_of("rollout=vllm", *overrides, **rest).command)


def sglang(*overrides, **rest):
    return flags(server_of("rollout=sglang", *overrides, **rest).command)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_model_len", 5, ["--max-model-len", "5"]),
        ("on", True, ["--on"]),
        ("off", False, []),
        ("absent", None, []),
        ("empty", "", []),
        ("several", [1, 2], ["--several", "1", "2"]),
        ("none", [], []),
        ("data", {"b": 1, "a": 2}, ["--data", '{"a": 2, "b": 1}']),
    ],
)
def test_the_flag_of_a_key_is_built_from_its_value(name, value, words):
    assert flag(name, value) == words


def test_each_engine_is_started_by_its_own_python():
    own = "/engines/vllm/bin/python"
    assert server_of("rollout=vllm").command[:3] == (
        own,
        "-m",
        "areal_like.serving.engines.vllm.plugin.launch",
    )
    assert server_of("rollout=sglang").command[:3] == (
        "/engines/sglang/bin/python",
        "-m",
        "areal_like.serving.engines.sglang.plugin.launch",
    )
    assert server_of("rollout=vllm", "vllm.python=/v/bin/python").command[0] == "/v/bin/python"
    assert server_of("rollout=sglang", "sglang.python=/s/bin/python").command[0] == "/s/bin/python"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("skip_tokenizer_init", True, {"skip-tokenizer-init": True}),
        ("enforce_eager", True, {"enforce-eager": True}),
        ("enforce_eager", False, {"no-enforce-eager": True}),
        ("dtype", "float16", {"dtype": "float16"}),
        ("distributed_executor_backend", "ray", {"distributed-executor-backend": "ray"}),
        ("max_num_seqs", 17, {"max-num-seqs": "17"}),
        ("block_size", 64, {"block-size": "64"}),
        ("cpu_offload_gb", 2.5, {"cpu-offload-gb": "2.5"}),
        ("disable_sliding_window", True, {"disable-sliding-window": True}),
        ("max_model_len", 4096, {"max-model-len": "4096"}),
        ("enable_chunked_prefill", True, {"enable-chunked-prefill": True}),
        ("enable_chunked_prefill", False, {"no-enable-chunked-prefill": True}),
        ("enable_prefix_caching", True, {"enable-prefix-caching": True}),
        ("enable_prefix_caching", False, {"no-enable-prefix-caching": True}),
        ("gpu_memory_utilization", 0.5, {"gpu-memory-utilization": "0.5"}),
        ("worker_extension_cls", "my.Extension", {"worker-extension-cls": "my.Extension"}),
        ("enable_sleep_mode", True, {"enable-sleep-mode": True}),
        ("uvicorn_log_level", "error", {"uvicorn-log-level": "error"}),
        ("trust_remote_code", True, {"trust-remote-code": True}),
        ("enable_auto_tool_choice", True, {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}),
        ("seed", 41, {"seed": "41"}),
    ],
)
def test_a_key_of_vllm_is_its_flag(key, value, expected):
    assert expected.items() <= with_value("vllm", key, value).items()


def test_an_override_reaches_the_command_line():
    assert vllm("vllm.max_num_seqs=17")["max-num-seqs"] == "17"
    assert sglang("sglang.cuda_graph_bs=[1,2,4]")["cuda-graph-bs-decode"] == ["1", "2", "4"]


def test_vllm_gets_the_flags_that_training_needs():
    result = vllm()
    assert result["model"] == "some/model"
    assert result["logprobs-mode"] == "processed_logprobs"
    assert result["enable-scale-out"] is True
    assert result["middleware"] == "areal_like.serving.token_guard.RequireToken"
    assert server_of("rollout=vllm").env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "tool-call-parser" not in result


@pytest.mark.parametrize("mode", ["nccl", "disk"])
def test_weights_reach_vllm_through_its_workers(mode):
    assert vllm(f"actor.weight_update_mode={mode}")["worker-extension-cls"].startswith(
        "areal_like.serving.engines.vllm."
    )


def test_adapters_are_served_at_a_rank_that_vllm_supports():
    result = vllm("actor.use_lora=true", "actor.lora_rank=20")
    assert (result["enable-lora"], result["max-lora-rank"]) == (True, "32")
    assert server_of("rollout=vllm", "actor.use_lora=true").env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "enable-lora" not in vllm()


def test_dimensions_are_replicas_and_parallel_sizes():
    overrides = ("rollout.backend=vllm:d2t2p2",)
    first, second = (flags(server_of(*overrides, gpus=16, index=index).command) for index in range(2))
    assert (first["tensor-parallel-size"], first["pipeline-parallel-size"]) == ("2", "2")
    assert int(second["seed"]) == int(first["seed"]) + 1
    assert sglang("rollout.backend=sglang:d1t4p2", gpus=16)["tp-size"] == "4"


def test_vllm_on_a_cpu_gets_its_cores_and_no_unsupported_features():
    server = server_of("rollout=vllm", "vllm.enable_chunked_prefill=true", gpus=0)
    result = flags(server.command)
    assert server.env["VLLM_CPU_OMP_THREADS_BIND"] == ",".join(str(core) for core in server.cores)
    assert server.env["TORCHDYNAMO_DISABLE"] == "1"
    assert result["block-size"] == "32"
    assert "no-enable-chunked-prefill" in result
    assert "gpu-memory-utilization" not in result


@pytest.mark.shows_no_effect("vllm.max_seq_len_to_capture", "vllm.swap_space")
@pytest.mark.parametrize("hint", ["swap_space=8", "max_seq_len_to_capture=100"])
def test_flags_that_vllm_has_removed_are_named(hint):
    plan = plan_of("grpo", *BIG_MODEL, "rollout=vllm", f"vllm.{hint}", gpus=2)
    name = hint.partition("=")[0]
    assert any(warning.startswith(f"vllm.{name}: has no effect") for warning in plan.warnings)
    assert name.replace("_", "-") not in vllm(f"vllm.{hint}")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *((name, True, {name.replace("_", "-"): True}) for name in (
            "skip_tokenizer_init", "disable_radix_cache", "disable_cuda_graph_padding", "enable_nccl_nvls",
            "disable_outlines_disk_cache", "disable_custom_all_reduce", "disable_overlap_schedule",
            "enable_mixed_chunk", "enable_dp_attention", "enable_torch_compile", "enable_p2p_check",
            "triton_attention_reduce_in_fp32", "enable_memory_saver", "allow_auto_truncate", "enable_lora",
            "log_requests", "show_time_cost", "enable_metrics",
        )),
        *((name, 7, {name.replace("_", "-"): "7"}) for name in (
            "random_seed", "torch_compile_max_bs", "triton_attention_num_kv_splits", "num_continuous_decode_steps",
            "context_length", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "cpu_offload_gb",
            "dp_size", "ep_size", "max_loaded_loras", "max_loras_per_batch", "decode_log_interval",
        )),
        ("disable_cuda_graph", True, {f"cuda-graph-backend-{phase}": "disabled" for phase in ("decode", "prefill")}),
        ("cuda_graph_max_bs", 16, {"cuda-graph-max-bs-decode": "16"}),
        ("cuda_graph_bs", [1, 2, 4], {"cuda-graph-bs-decode": ["1", "2", "4"]}),
        ("enable_multithread_load", True, {"model-loader-extra-config": '{"enable_multithread_load": true}'}),
        ("attention_backend", "fa3", {"attention-backend": "fa3"}),
        ("sampling_backend", "pytorch", {"sampling-backend": "pytorch"}),
        ("mem_fraction_static", 0.5, {"mem-fraction-static": "0.5"}),
        ("schedule_policy", "fcfs", {"schedule-policy": "fcfs"}),
        ("schedule_conservativeness", 1.5, {"schedule-conservativeness": "1.5"}),
        ("dtype", "float16", {"dtype": "float16"}),
        ("kv_cache_dtype", "fp8_e5m2", {"kv-cache-dtype": "fp8_e5m2"}),
        ("lora_paths", ["/a", "/b"], {"lora-paths": ["/a", "/b"]}),
        ("lora_target_modules", ["q_proj", "v_proj"], {"lora-target-modules": ["q_proj", "v_proj"]}),
        ("max_lora_rank", 8, {"max-lora-rank": "8"}),
        ("lora_backend", "csgmv", {"lora-backend": "csgmv"}),
        ("log_level", "error", {"log-level": "error"}),
        ("log_level_http", "error", {"log-level-http": "error"}),
        ("log_requests_level", 2, {"log-requests-level": "2"}),
    ],
)  # fmt: skip
def test_a_key_of_sglang_is_its_flag(key, value, expected):
    assert expected.items() <= with_value("sglang", key, value).items()


def test_legacy_expert_parallelism_spans_the_server():
    assert sglang("sglang.enable_ep_moe=true", "rollout.backend=sglang:d1t2", gpus=4)["ep-size"] == "2"


@pytest.mark.shows_no_effect("sglang.enable_fast_load")
def test_flags_that_sglang_has_removed_are_named():
    plan = plan_of("grpo", *BIG_MODEL, "rollout=sglang", "sglang.torchao_config=int8wo", gpus=2)
    assert "sglang.torchao_config" in {obstacle.key for obstacle in plan.cannot_start}
    plan = plan_of("grpo", *BIG_MODEL, "rollout=sglang", "sglang.enable_fast_load=true", gpus=2)
    assert any(warning.startswith("sglang.enable_fast_load: has no effect") for warning in plan.warnings)


def test_sglang_on_a_cpu():
    server = server_of("rollout=sglang", gpus=0)
    result = flags(server.command)
    assert (result["device"], result["attention-backend"], result["mem-fraction-static"]) == (
        "cpu",
        "torch_native",
        "0.2",
    )
    assert result["disable-overlap-schedule"] is True
    assert server.env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert sglang("sglang.mem_fraction_static=0.4", gpus=0)["mem-fraction-static"] == "0.4"


def test_adapters_of_the_actor_are_served_by_sglang():
    result = sglang("actor.use_lora=true", "actor.lora_rank=20", "actor.target_modules=[q_proj]")
    assert (result["enable-lora"], result["max-lora-rank"], result["lora-target-modules"]) == (True, "20", "q_proj")
    assert sglang("actor.use_lora=true")["lora-target-modules"] == "all"
    assert "enable-lora" not in sglang()


def test_user_flags_come_last():
    own = ("+vllm.extra_args.max_logprobs=5", "+vllm.extra_args.enable_mfu_metrics=true")
    command = server_of("rollout=vllm", *own).command
    assert command[-3:] == ("--max-logprobs", "5", "--enable-mfu-metrics")
    assert sglang("+sglang.extra_args.page_size=16")["page-size"] == "16"


@pytest.mark.parametrize("name", ["model", "max_model_len", "port", "api_key"])
def test_flags_that_the_plan_gives_or_that_would_show_a_secret_are_refused(name):
    plan = plan_of("grpo", *BIG_MODEL, "rollout=vllm", f"+vllm.extra_args.{name}=x", gpus=2)
    assert f"vllm.extra_args.{name}" in {obstacle.key for obstacle in plan.cannot_start}
    assert of_role(plan, "server")[0].command[-1] != "x"
