"""vLLM's command line and environment (flags as of 0.32)."""

from typing import TYPE_CHECKING

from launcher.plan.servers import ServerSpec, ServerStart, extra_flags, flag

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig
    from areal_like.config.vllm import vLLMConfig

MIDDLEWARE = "areal_like.serving.vllm.guard.require_token"
WORKER_EXTENSION = "areal_like.serving.vllm.worker.WorkerExtension"
OUR_TRANSFER = {"backend": "areal_like"}
NCCL_TRANSFER = {"backend": "nccl"}
ADAPTERS_AT_ONCE = 2
GIB_OF_CACHE_ON_CPU = 4
CPU_BLOCK = 32
"""On a CPU vLLM's attention takes blocks of a multiple of this and refuses others."""

SAME_NAME = (
    "skip_tokenizer_init",
    "dtype",
    "distributed_executor_backend",
    "max_num_seqs",
    "cpu_offload_gb",
    "disable_sliding_window",
    "max_model_len",
    "enable_sleep_mode",
    "uvicorn_log_level",
    "trust_remote_code",
)
"""Keys that are flags of the same name."""
TWO_WAY = ("enforce_eager", "enable_prefix_caching", "enable_chunked_prefill")
"""Flags that vLLM sets itself where they are absent, so that false is said too."""
LOST = {"swap_space": 4, "max_seq_len_to_capture": 32768}
"""Hints that vLLM no longer takes, with the defaults of the schema."""


def start_vllm(config: "GRPOConfig", spec: ServerSpec) -> ServerStart:
    vllm = config.vllm
    start = ServerStart([vllm.python or spec.python, "-m", "vllm.entrypoints.openai.api_server"])
    start.command += ["--host", spec.host, "--port", spec.port_argument]
    start.add("model", spec.model)
    start.add("seed", vllm.seed + spec.number)
    start.add("tensor_parallel_size", spec.tensor)
    start.add("pipeline_parallel_size", spec.pipeline)
    for name in SAME_NAME:
        start.add(name, getattr(vllm, name))
    for name in TWO_WAY:
        start.command.append(_switch(name, getattr(vllm, name) and not (name == CHUNKED and not spec.on_gpu)))
    if vllm.enable_auto_tool_choice:
        start.command += ["--enable-auto-tool-choice", "--tool-call-parser", vllm.tool_call_parser]
    _device(vllm, spec, start)
    _learning(config, spec, start)
    start.without_effect += [f"vllm.{name}" for name, default in LOST.items() if getattr(vllm, name) != default]
    extra_flags("vllm", vllm.extra_args, tuple(start.command), start)
    return start


CHUNKED = "enable_chunked_prefill"


def _switch(name: str, value: bool) -> str:
    return flag(name if value else f"no_{name}", True)[0]


def _device(vllm: "vLLMConfig", spec: ServerSpec, start: ServerStart) -> None:
    """On a CPU vLLM wants its cores and the size of its cache told; compiling a first request takes it 18 s."""
    if spec.on_gpu:
        start.add("block_size", vllm.block_size)
        start.add("gpu_memory_utilization", vllm.gpu_memory_utilization)
        return
    start.add("block_size", -(-vllm.block_size // CPU_BLOCK) * CPU_BLOCK)
    start.env["VLLM_CPU_KVCACHE_SPACE"] = str(GIB_OF_CACHE_ON_CPU)
    start.env["TORCHDYNAMO_DISABLE"] = "1"
    if spec.cores:
        start.env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in spec.cores)
    if vllm.enable_chunked_prefill:
        start.without_effect.append("vllm.enable_chunked_prefill (on a CPU vLLM dies of it with seeded requests)")


def _learning(config: "GRPOConfig", spec: ServerSpec, start: ServerStart) -> None:
    """Token ids in and out, log-probabilities of what was sampled from, control routes behind the run's token, and a
    way in for new weights."""
    start.env["VLLM_SERVER_DEV_MODE"] = "1"
    start.command += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--middleware", MIDDLEWARE]
    start.add("worker_extension_cls", config.vllm.worker_extension_cls or WORKER_EXTENSION)
    if config.actor.use_lora:
        start.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        start.command += ["--enable-lora", "--max-lora-rank", str(_lora_rank(config.actor.lora_rank))]
        start.command += ["--max-loras", str(ADAPTERS_AT_ONCE)]
    if config.actor.weight_update_mode != "adapter":
        by_nccl = spec.on_gpu and config.actor.weight_update_mode in ("collective", "xccl", "nccl")
        start.add("weight_transfer_config", NCCL_TRANSFER if by_nccl else OUR_TRANSFER)


def _lora_rank(rank: int) -> int:
    """vLLM knows only some sizes: the smallest that holds the rank."""
    return next((size for size in LORA_RANKS if size >= rank), rank)


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
