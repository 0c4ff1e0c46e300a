"""vLLM's command line and environment (flags as of 0.32)."""

from typing import TYPE_CHECKING

from areal_like.process.run import LOOPBACK
from areal_like.serving.engines.external.command_line import ServerCommand, ServerSite, add_extra_flags, boolean_flag
from areal_like.serving.engines.external.flag_check import FlagParser
from areal_like.serving.engines.vllm.auto_values import AUTOS
from areal_like.serving.engines.vllm.distribution import DISTRIBUTION

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig
    from areal_like.config.sections.engines.vllm import vLLMConfig

MODULE = "areal_like.serving.engines.vllm.plugin.launch"
"""vLLM's server with our token guard."""
MIDDLEWARE = "areal_like.serving.token_guard.RequireToken"
WORKER_EXTENSION = "areal_like.serving.engines.vllm.plugin.worker.WorkerExtension"
ADAPTERS_AT_ONCE = 2
MIN_TEMPERATURE = 0.01
"""vLLM silently raises a lower temperature to this."""
GIB, CACHE_SHARE = 2**30, 8
"""On a CPU vLLM needs a cache size: this fraction of the machine's memory, of which it uses only what it fills."""
MAX_CACHE_GIB, DEFAULT_CACHE_GIB = 32, 4
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention on a CPU supports (0.32)."""
CPU_BLOCK = 32
"""On a CPU vLLM's attention needs a block size that is a multiple of this."""

SAME_NAME = (
    "skip_tokenizer_init",
    "dtype",
    "distributed_executor_backend",
    "max_num_seqs",
    "cpu_offload_gb",
    "max_model_len",
    "uvicorn_log_level",
    "trust_remote_code",
)
"""Keys that are flags with the same name."""
AUTO_FLAGS = ("enforce_eager", "enable_prefix_caching")
"""Flags with a `--no-` form, resolved here if they are `auto`."""
REMOVED_KEYS = {"swap_space": 4, "max_seq_len_to_capture": 32768}
"""Keys that vLLM no longer has, with the defaults of the schema."""
KEEP_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**36),
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
}
"""Settings of glibc: each update packs the weights into the memory of those before the last ones. To get it from the
kernel again would take as long as to pack them."""
GPU_MEMORY = 0.9
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
PARSER_SCRIPT = """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
arguments = parser.parse_args(sys.argv[1:])
try:
    validate_parsed_serve_args(arguments)
except (TypeError, KeyError, ValueError) as fault:
    parser.error(str(fault))
"""
FLAG_KEYS = {
    "default-chat-template-kwargs": "chat_template_args",
    "tensor-parallel-size": "rollout.backend",
    "pipeline-parallel-size": "rollout.backend",
    "max-lora-rank": "actor.lora_rank",
}
FLAG_PARSER = FlagParser(DISTRIBUTION, PARSER_SCRIPT, FLAG_KEYS)


def unsupported_temperature(temperature: float, is_greedy: bool) -> str | None:
    """Why vLLM would not sample with it; None if it does."""
    if is_greedy or not 0 < temperature < MIN_TEMPERATURE:
        return None
    return f"{temperature:g} is below vLLM's minimum; use at least {MIN_TEMPERATURE} (0 takes the likeliest token)"


def vllm_command(config: "GRPOConfig", site: ServerSite) -> ServerCommand:
    vllm = config.vllm
    start = ServerCommand([vllm.python or site.python, "-m", MODULE])
    start.command += ["--host", LOOPBACK, "--port", site.port_argument]
    start.add("model", site.model)
    start.add("seed", vllm.seed + site.number)
    start.add("tensor_parallel_size", site.tensor)
    start.add("pipeline_parallel_size", site.pipeline)
    for name in SAME_NAME:
        start.add(name, getattr(vllm, name))
    start.command += [boolean_flag(name, AUTOS.value_of(vllm, name, site.on_gpu)) for name in AUTO_FLAGS]
    start.command.append(boolean_flag("disable_sliding_window", vllm.disable_sliding_window))
    if vllm.enable_auto_tool_choice:
        start.command += ["--enable-auto-tool-choice", "--tool-call-parser", vllm.tool_call_parser]
    if site.on_gpu:
        _on_gpu(vllm, start)
    else:
        _on_cpu(vllm, site, start)
        if site.head_dim not in (None, *CPU_HEAD_SIZES):
            sizes = ", ".join(map(str, CPU_HEAD_SIZES))
            lacks = f"its attention heads have size {site.head_dim}, and vLLM on a CPU supports only {sizes}"
            remedy = "use rollout=sglang or rollout=embedded"
            start.problems.append(("actor.path", f"{config.actor.path}: {lacks}; {remedy}"))
    start.add("default_chat_template_kwargs", dict(config.chat_template_args) or None)
    _training_flags(config, start)
    if reason := unsupported_temperature(config.gconfig.temperature, config.gconfig.greedy):
        start.problems.append(("gconfig.temperature", reason))
    start.without_effect += [f"vllm.{name}" for name, default in REMOVED_KEYS.items() if getattr(vllm, name) != default]
    add_extra_flags("vllm", vllm.extra_args, start, two_way=True)
    return start


def _on_gpu(vllm: "vLLMConfig", start: ServerCommand) -> None:
    start.add("block_size", vllm.block_size)
    start.add("gpu_memory_utilization", AUTOS.value_of(vllm, "gpu_memory_utilization", True))
    start.add("kv_cache_memory_bytes", AUTOS.value_of(vllm, "kv_cache_memory_bytes", True))
    start.add("enable_sleep_mode", vllm.enable_sleep_mode)
    start.command.append(boolean_flag("enable_chunked_prefill", AUTOS.value_of(vllm, "enable_chunked_prefill", True)))


def _on_cpu(vllm: "vLLMConfig", site: ServerSite, start: ServerCommand) -> None:
    """vLLM needs to know its cores and the size of its cache; compiling its first request would take 18 s."""
    start.add("block_size", -(-vllm.block_size // CPU_BLOCK) * CPU_BLOCK)
    start.command.append(boolean_flag("enable_chunked_prefill", False))
    start.env |= {"TORCHDYNAMO_DISABLE": "1"} | KEEP_FREED_MEMORY
    given = {name.replace("-", "_") for name in vllm.extra_args}
    if "kv_cache_memory_bytes" not in given and vllm.kv_cache_memory_bytes in (None, "auto"):
        start.env["VLLM_CPU_KVCACHE_SPACE"] = str(_gib_of_cache(site.memory_bytes))
    if site.cores:
        start.env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in site.cores)
    if AUTOS.value_of(vllm, "enable_chunked_prefill", False):
        reason = "has no effect on a CPU, where vLLM crashes with it and seeded requests"
        start.notes.append(("vllm.enable_chunked_prefill", reason))
    start.add("kv_cache_memory_bytes", AUTOS.value_of(vllm, "kv_cache_memory_bytes", False))
    if AUTOS.value_of(vllm, "gpu_memory_utilization", False) != GPU_MEMORY:
        start.notes.append(("vllm.gpu_memory_utilization", "has no effect without a GPU"))
    if vllm.enable_sleep_mode:
        reason = "vLLM does not support sleep mode on a CPU; remove it, or generate on a GPU"
        start.problems.append(("vllm.enable_sleep_mode", reason))


def _gib_of_cache(memory_bytes: int | None) -> int:
    if not memory_bytes:
        return DEFAULT_CACHE_GIB
    return max(1, min(memory_bytes // CACHE_SHARE // GIB, MAX_CACHE_GIB))


def _training_flags(config: "GRPOConfig", start: ServerCommand) -> None:
    """Token ids in and out, log-probabilities of the sampled distribution, priorities, control routes behind the run's
    token, and the extension that loads new weights."""
    start.env |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": LOOPBACK, "VLLM_NO_USAGE_STATS": "1"}
    start.command += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--middleware", MIDDLEWARE]
    start.command += ["--scheduling-policy", "priority"]
    start.add("worker_extension_cls", config.vllm.worker_extension_cls or WORKER_EXTENSION)
    if config.actor.use_lora:
        start.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        start.command += ["--enable-lora", "--max-lora-rank", str(_lora_rank(config.actor.lora_rank))]
        start.command += ["--max-loras", str(ADAPTERS_AT_ONCE)]
        reason = f"{ADAPTERS_AT_ONCE}, as an adapter stays loaded until its requests are done, beside the newest one"
        start.notes.append(("vllm.max_loras", reason))


def _lora_rank(rank: int) -> int:
    """The smallest of vLLM's sizes that holds the rank."""
    return next((size for size in LORA_RANKS if size >= rank), rank)
