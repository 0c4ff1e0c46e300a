"""SGLang's command line and environment (flags as of 0.5.21)."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.process.run import LOOPBACK
from areal_like.serving.engines.external.command_line import ServerCommand, ServerSite, add_extra_flags
from areal_like.serving.engines.external.flag_check import FlagParser
from areal_like.serving.engines.external.model_files import max_sequence_length
from areal_like.serving.engines.sglang.auto_values import AUTOS
from areal_like.serving.engines.sglang.distribution import DISTRIBUTION
from areal_like.serving.engines.sglang.requests import Capabilities, unsupported_sampling
from areal_like.serving.requests import parse_sampling
from areal_like.weights.transfer_path import COLLECTIVE_MODES

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig
    from areal_like.config.sections.engines.sglang import SGLangConfig

MODULE = "areal_like.serving.engines.sglang.plugin.launch"
"""SGLang's launcher with our token guard."""

SAME_NAME = (
    "skip_tokenizer_init",
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
    "max_running_requests",
    "max_prefill_tokens",
    "schedule_conservativeness",
    "cpu_offload_gb",
    "dtype",
    "kv_cache_dtype",
    "dp_size",
    "lora_paths",
    "log_level",
    "log_level_http",
    "log_requests",
    "log_requests_level",
    "show_time_cost",
    "enable_metrics",
    "decode_log_interval",
)
"""Keys that are flags with the same name. SGLang's boolean flags are false if absent."""
AUTO_FLAGS = ("disable_radix_cache", "chunked_prefill_size", "max_total_tokens")
RENAMED = {"cuda_graph_max_bs": "cuda_graph_max_bs_decode", "cuda_graph_bs": "cuda_graph_bs_decode"}
NAN_CHECK = "SGLANG_SANITIZE_NAN_LOGITS"
GPU_MEMORY_FRACTION = 0.9
CPU_MEMORY_FRACTION = 0.2
"""On a CPU SGLang's own default is negative and crashes it; the schema's 0.9 is for a GPU."""
CPU_CHOICES = {"attention_backend": "torch_native", "sampling_backend": "pytorch", "grammar_backend": "none"}
ON_CPU = {"attention_backend": ("torch_native", "intel_amx"), "sampling_backend": ("pytorch",)}
"""Kernels that SGLang has for CPUs."""
GPU_LORA_BACKEND, CPU_LORA_BACKEND = "triton", "torch_native"
ADAPTERS_AT_ONCE = 2
ALL_TOKENS = 1 << 20
"""More than any vocabulary: SGLang may list all remaining tokens of a truncated distribution."""
RESERVED_TOKENS = 8
"""SGLang accepts prompts of 6 tokens less than its context, and ends answers 2 tokens before it."""
PRIORITY_POLICIES = ("fcfs", "lof")
"""Policies that support priorities of requests."""
UNGUARDED_FLAGS = {
    "tokenizer_worker_num": "several HTTP processes",
    "enable_http2": "another HTTP server",
    "grpc_port": "a second port beside HTTP",
    "grpc_mode": "a second port beside HTTP",
    "smg_grpc_mode": "a second port beside HTTP",
    "encoder_only": "another HTTP server",
    "use_ray": "another HTTP server",
    "disaggregation_mode": "another server, for prompts",
    "disaggregation_bootstrap_port": "another server, for prompts",
    "encoder_bootstrap_port": "another server, for images",
    "engine_info_bootstrap_port": "another server, for the addresses of weights",
}
"""Flag -> reason. Unambiguous prefixes of a flag count as the flag."""
ANY_VOCABULARY = 1 << 31
SENT_TO_ONE = (
    "with several replicas or a pipeline in one server SGLang takes no weights that are sent; set it to 1 "
    "(rollout.backend sets the number of servers), or actor.weight_update_mode=disk"
)
PARSER_SCRIPT = """
import sys
from sglang.srt.server_args import prepare_server_args
prepare_server_args(sys.argv[1:])
"""
FLAG_KEYS = {
    "default-chat-template-kwargs": "chat_template_args",
    "tp-size": "rollout.backend",
    "pp-size": "rollout.backend",
    "trust-remote-code": "actor.trust_remote_code",
    "cuda-graph-max-bs-decode": "sglang.cuda_graph_max_bs",
    "cuda-graph-bs-decode": "sglang.cuda_graph_bs",
    "model-loader-extra-config": "sglang.enable_multithread_load",
}
FLAG_PARSER = FlagParser(DISTRIBUTION, PARSER_SCRIPT, FLAG_KEYS)


def sglang_command(config: "GRPOConfig", site: ServerSite) -> ServerCommand:
    sglang = config.sglang
    start = ServerCommand([sglang.python or site.python, "-m", MODULE])
    start.command += ["--host", LOOPBACK, "--port", site.port_argument]
    start.add("model_path", site.model)
    start.add("random_seed", sglang.random_seed + site.number)
    start.add("tp_size", site.tensor)
    start.add("pp_size", site.pipeline)
    start.add("trust_remote_code", config.actor.trust_remote_code)
    for name in SAME_NAME:
        start.add(name, getattr(sglang, name))
    for name in AUTO_FLAGS:
        start.add(name, AUTOS.value_of(sglang, name, site.on_gpu))
    _context(sglang, site, start)
    _renamed(sglang, site, start)
    _device(sglang, site, start)
    _policy(sglang, site, start)
    _sampling(config, site, start)
    _lora(config, site, start)
    start.add("default_chat_template_kwargs", dict(config.chat_template_args) or None)
    _training_flags(start)
    _updates(config, start)
    _extra(sglang, start)
    return start


def _context(sglang: "SGLangConfig", site: ServerSite, start: ServerCommand) -> None:
    """SGLang refuses a context longer than the model's; the schema's default is for large models. SGLang reserves the
    last places of a context, so it gets a few more; requests keep to the true length."""
    configured, folder = sglang.context_length, Path(site.model)
    longest = max_sequence_length(folder) if (folder / "config.json").is_file() else None
    if longest is None:
        start.add("context_length", configured)
        return
    if configured is not None and configured > longest:
        start.notes.append(("sglang.context_length", f"{longest} instead of {configured}, the maximum of the model"))
    start.add("context_length", min(configured or longest, longest) + RESERVED_TOKENS)
    start.env["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"


def _renamed(sglang: "SGLangConfig", site: ServerSite, start: ServerCommand) -> None:
    """Keys that SGLang has renamed or removed."""
    for name, flag_name in RENAMED.items():
        start.add(flag_name, getattr(sglang, name))
    if sglang.disable_cuda_graph:
        start.command += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
    start.add("ep_size", site.tensor if sglang.enable_ep_moe and sglang.ep_size == 1 else sglang.ep_size)
    if sglang.enable_multithread_load:
        start.add("model_loader_extra_config", {"enable_multithread_load": True})
    if sglang.enable_nan_detection:
        start.env[NAN_CHECK] = "1"
    if sglang.enable_fast_load:
        start.without_effect.append("sglang.enable_fast_load")


def _device(sglang: "SGLangConfig", site: ServerSite, start: ServerCommand) -> None:
    """On a CPU, compiling the penalties would delay the first request by half a minute, and a server that polls for
    requests without a pause would take a core from the trainer."""
    fraction = AUTOS.value_of(sglang, "mem_fraction_static", site.on_gpu)
    kernels = {name: getattr(sglang, name, None) for name in CPU_CHOICES}
    overlap_off = sglang.disable_overlap_schedule
    if not site.on_gpu:
        start.env |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
        start.command += ["--device", "cpu", "--sleep-on-idle"]
        fraction = CPU_MEMORY_FRACTION if fraction in (None, GPU_MEMORY_FRACTION) else fraction
        kernels = {name: value or CPU_CHOICES[name] for name, value in kernels.items()}
        overlap_off = True
        for name, supported in ON_CPU.items():
            if kernels[name] not in supported:
                reason = f"{kernels[name]} needs a GPU; remove it, or use {' or '.join(supported)}"
                start.problems.append((f"sglang.{name}", reason))
    start.add("mem_fraction_static", fraction)
    start.add("disable_overlap_schedule", overlap_off)
    for name, value in kernels.items():
        start.add(name, value)


def _policy(sglang: "SGLangConfig", site: ServerSite, start: ServerCommand) -> None:
    """Without its prompt cache SGLang cannot order requests by the longest prefix."""
    policy = AUTOS.value_of(sglang, "schedule_policy", site.on_gpu)
    if policy == "lpm" and AUTOS.value_of(sglang, "disable_radix_cache", site.on_gpu):
        policy = "fcfs"
    start.add("schedule_policy", policy)
    if policy in PRIORITY_POLICIES:
        start.command += ["--enable-priority-scheduling", "--schedule-low-priority-values-first"]
        start.command += ["--disable-priority-preemption", "--default-priority-value", "0"]


def _sampling(config: "GRPOConfig", site: ServerSite, start: ServerCommand) -> None:
    """SGLang supports seeds of requests only in a slower mode, which does not exist on a CPU."""
    by_seed = config.gconfig.seed is not None
    if by_seed and site.on_gpu:
        start.add("enable_deterministic_inference", True)
        reason = "slower: gconfig.seed is set, and SGLang follows seeds only in this mode"
        start.notes.append(("sglang.enable_deterministic_inference", reason))
    elif by_seed:
        reason = (
            "on a CPU SGLang's answers do not follow a seed; remove it (sglang.random_seed is the server's), or use "
            "rollout=embedded or rollout=vllm"
        )
        start.problems.append(("gconfig.seed", reason))
    sampling = {name: value for name, value in asdict(config.gconfig).items() if name not in ("n_samples", "seed")}
    capabilities = Capabilities(has_tokenizer=not config.sglang.skip_tokenizer_init, by_seed=by_seed)
    for name, reason in unsupported_sampling(parse_sampling(sampling, ANY_VOCABULARY), capabilities):
        start.problems.append((f"gconfig.{name}", reason))


def _lora(config: "GRPOConfig", site: ServerSite, start: ServerCommand) -> None:
    sglang, actor = config.sglang, config.actor
    enabled = actor.use_lora if sglang.enable_lora is None else sglang.enable_lora
    start.add("enable_lora", enabled)
    on_cpu = not site.on_gpu and sglang.lora_backend == GPU_LORA_BACKEND
    start.add("lora_backend", CPU_LORA_BACKEND if on_cpu else sglang.lora_backend)
    own = actor if actor.use_lora else None
    start.add("max_lora_rank", sglang.max_lora_rank or (own.lora_rank if own and enabled else None))
    modules = sglang.lora_target_modules or (own.target_modules or ["all-linear"] if own and enabled else [])
    start.add("lora_target_modules", ["all" if module == "all-linear" else module for module in modules])
    attention = {"q_proj", "k_proj", "v_proj"} & set(actor.target_modules)
    if own and actor.weight_update_mode == "adapter" and attention and not {"q_proj", "v_proj"} <= attention:
        reason = "SGLang supports adapters of q_proj and v_proj only together; give both, or remove the key for all"
        start.problems.append(("actor.target_modules", reason))
    for name in ("max_loaded_loras", "max_loras_per_batch"):
        limit = getattr(sglang, name)
        if own and enabled and limit < ADAPTERS_AT_ONCE:
            reason = (
                f"{ADAPTERS_AT_ONCE}, as an adapter stays loaded until its requests are done, beside the newest one"
            )
            start.notes.append((f"sglang.{name}", reason))
            limit = ADAPTERS_AT_ONCE
        start.add(name, limit)


def _training_flags(start: ServerCommand) -> None:
    """Log-probabilities over the remaining tokens, and no generation by SGLang itself: not for a warm-up, and not for
    /health, which is open to all callers."""
    start.add("sampling_mask_max_tokens", ALL_TOKENS)
    start.add("skip_server_warmup", True)
    start.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"


def _updates(config: "GRPOConfig", start: ServerCommand) -> None:
    """SGLang takes sent weights in one replica without a pipeline, which `rollout.backend` cannot ask for."""
    if config.actor.weight_update_mode in COLLECTIVE_MODES and not takes_sent_weights(asdict(config.sglang)):
        start.problems.append(("sglang.dp_size", SENT_TO_ONE))


def takes_sent_weights(settings: Mapping[str, Any]) -> bool:
    """By SGLang's own names."""
    has_replicas = settings["dp_size"] > 1 and not settings["enable_dp_attention"]
    return not has_replicas and settings.get("pp_size", 1) == 1


def _extra(sglang: "SGLangConfig", start: ServerCommand) -> None:
    allowed = {}
    for name, value in sglang.extra_args.items():
        given = name.lstrip("-").replace("-", "_").partition("=")[0]
        opened = next((opened for flag, opened in UNGUARDED_FLAGS.items() if flag.startswith(given)), None)
        if opened is None:
            allowed[name] = value
        else:
            reason = f"{opened}, which the run's token does not guard; remove it"
            start.problems.append((f"sglang.extra_args.{name}", reason))
    add_extra_flags("sglang", allowed, start)
