"""SGLang's command line and environment (flags as of 0.5.21)."""

from typing import TYPE_CHECKING, Any

from launcher.plan.plan import Obstacle
from launcher.plan.servers import ServerSpec, ServerStart, extra_flags

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig
    from areal_like.config.sglang import SGLangConfig

SAME_NAME = (
    "skip_tokenizer_init",
    "disable_radix_cache",
    "disable_cuda_graph_padding",
    "enable_nccl_nvls",
    "disable_outlines_disk_cache",
    "disable_custom_all_reduce",
    "enable_mixed_chunk",
    "enable_dp_attention",
    "enable_torch_compile",
    "torch_compile_max_bs",
    "enable_p2p_check",
    "triton_attention_reduce_in_fp32",
    "triton_attention_num_kv_splits",
    "num_continuous_decode_steps",
    "enable_memory_saver",
    "allow_auto_truncate",
    "enable_multimodal",
    "context_length",
    "max_running_requests",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "schedule_policy",
    "schedule_conservativeness",
    "cpu_offload_gb",
    "dtype",
    "kv_cache_dtype",
    "dp_size",
    "lora_paths",
    "max_loaded_loras",
    "max_loras_per_batch",
    "log_level",
    "log_level_http",
    "log_requests",
    "log_requests_level",
    "show_time_cost",
    "enable_metrics",
    "decode_log_interval",
)
"""Keys that are flags of the same name. SGLang's switches are all off by default, so false is said by silence."""
RENAMED = {"cuda_graph_max_bs": "cuda_graph_max_bs_decode", "cuda_graph_bs": "cuda_graph_bs_decode"}
NAN_CHECK = "SGLANG_ENABLE_NAN_LOGITS_CHECK"
GPU_MEMORY_FRACTION = 0.9
CPU_MEMORY_FRACTION = 0.2
"""On a CPU SGLang computes a negative share itself and dies; the schema's 0.9 is meant for a GPU of its own."""
CPU_CHOICES = {"attention_backend": "torch_native", "sampling_backend": "pytorch", "grammar_backend": "none"}


def start_sglang(config: "GRPOConfig", spec: ServerSpec) -> ServerStart:
    sglang = config.sglang
    start = ServerStart([sglang.python or spec.python, "-m", "sglang.launch_server"])
    start.command += ["--host", spec.host, "--port", spec.port_argument]
    start.add("model_path", spec.model)
    start.add("random_seed", sglang.random_seed + spec.number)
    start.add("tp_size", spec.tensor)
    start.add("pp_size", spec.pipeline)
    start.add("trust_remote_code", config.actor.trust_remote_code)
    for name in SAME_NAME:
        start.add(name, getattr(sglang, name))
    _renamed(sglang, spec, start)
    _device(sglang, spec, start)
    _lora(config, start)
    extra_flags("sglang", sglang.extra_args, tuple(start.command), start)
    return start


def _renamed(sglang: "SGLangConfig", spec: ServerSpec, start: ServerStart) -> None:
    """What SGLang has under another name now, and what it has no more."""
    for name, flag_name in RENAMED.items():
        start.add(flag_name, getattr(sglang, name))
    if sglang.disable_cuda_graph:
        start.command += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
    start.add("ep_size", spec.tensor if sglang.enable_ep_moe and sglang.ep_size == 1 else sglang.ep_size)
    if sglang.enable_multithread_load:
        start.add("model_loader_extra_config", {"enable_multithread_load": True})
    if sglang.enable_nan_detection:
        start.env[NAN_CHECK] = "1"
    if sglang.enable_fast_load:
        start.without_effect.append("sglang.enable_fast_load")
    if sglang.torchao_config:
        reason = "SGLang no longer quantizes with torchao; leave it out, or give another kind by sglang.extra_args"
        start.obstacles.append(Obstacle("sglang.torchao_config", reason))


def _device(sglang: "SGLangConfig", spec: ServerSpec, start: ServerStart) -> None:
    fraction: Any = sglang.mem_fraction_static
    chosen = {name: getattr(sglang, name, None) for name in CPU_CHOICES}
    overlap_off = sglang.disable_overlap_schedule
    if not spec.on_gpu:
        start.env["SGLANG_USE_CPU_ENGINE"] = "1"
        start.command += ["--device", "cpu", "--skip-server-warmup"]
        fraction = CPU_MEMORY_FRACTION if fraction in (None, GPU_MEMORY_FRACTION) else fraction
        chosen = {name: value or CPU_CHOICES[name] for name, value in chosen.items()}
        overlap_off = True
    start.add("mem_fraction_static", fraction)
    start.add("disable_overlap_schedule", overlap_off)
    for name, value in chosen.items():
        start.add(name, value)


def _lora(config: "GRPOConfig", start: ServerStart) -> None:
    sglang, actor = config.sglang, config.actor
    enabled = actor.use_lora if sglang.enable_lora is None else sglang.enable_lora
    start.add("enable_lora", enabled)
    start.add("lora_backend", sglang.lora_backend)
    own = actor if actor.use_lora else None
    start.add("max_lora_rank", sglang.max_lora_rank or (own.lora_rank if own and enabled else None))
    modules = sglang.lora_target_modules or (own.target_modules or ["all-linear"] if own and enabled else [])
    start.add("lora_target_modules", ["all" if module == "all-linear" else module for module in modules])
