"""Section `sglang`: keys with the name of an SGLang flag are passed on unchanged."""

from typing import Any

from areal_like.config.fields import Auto, config, key, refused

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


@config
class SGLangConfig:
    """SGLang's server. Used only if SGLang generates. Where SGLang 0.5.21 has removed a flag, the help names its
    replacement."""

    model_path: str = key("")
    """Model to serve. Follows `actor.path`; another value is refused."""

    random_seed: int = key("${seed}")
    """Seed of the server; every replica adds its index. Follows the experiment's `seed`."""

    skip_tokenizer_init: bool = key(False)
    """Do not load a tokenizer: requests and answers are token ids only; `gconfig.stop` does not work."""

    disable_cuda_graph: bool = key(False)
    """Do not capture CUDA graphs: slower, less memory, easier to debug."""

    disable_radix_cache: bool | Auto = key("auto")
    """Do not reuse the cache of earlier prompts for later ones with the same prefix, such as the other samples of a
    group. Each weight update clears it. `auto` is false on a GPU and true on a CPU."""

    disable_cuda_graph_padding: bool = key(False)
    """Use a CUDA graph only if one of exactly the batch's size was captured."""

    enable_nccl_nvls: bool = key(False)
    """Let NCCL use NVLink SHARP if the machine has it."""

    disable_outlines_disk_cache: bool = key(False)
    """Do not cache constrained decoding on disk; for many servers on one file system."""

    disable_custom_all_reduce: bool = key(False)
    """Use NCCL's all-reduce instead of SGLang's kernel."""

    disable_overlap_schedule: bool = key(False)
    """Do not schedule the next batch on the CPU while the GPU computes the current one."""

    enable_mixed_chunk: bool = key(False)
    """Batch chunks of prompts together with running answers. Needs a positive `chunked_prefill_size`."""

    enable_dp_attention: bool = key(False)
    """Data-parallel attention, tensor-parallel for the rest, for models that support it. `dp_size` is its size."""

    enable_ep_moe: bool = key(False)
    """Expert parallelism. Removed from SGLang: set `ep_size`, and moe_a2a_backend in `extra_args`."""

    enable_torch_compile: bool = key(False)
    """Compile the model with torch.compile. The start takes longer."""

    torch_compile_max_bs: int = key(32, ge=1)
    """Maximum batch size that is compiled."""

    cuda_graph_max_bs: int | None = key(None, ge=1)
    """Maximum batch size of captured CUDA graphs. Removed from SGLang: set cuda_graph_max_bs_decode and
    cuda_graph_max_bs_prefill in `extra_args`."""

    cuda_graph_bs: list[int] | None = key(None, ge=1)
    """Batch sizes of captured CUDA graphs. Removed from SGLang: set cuda_graph_bs_decode and cuda_graph_bs_prefill in
    `extra_args`."""

    torchao_config: str = key(
        "",
        rules=(
            refused("SGLang no longer quantizes with torchao; leave it out, or give another kind by sglang.extra_args"),
        ),
    )
    """Quantization by torchao, such as `int8wo`. The trainer could not reproduce it."""

    enable_nan_detection: bool = key(False)
    """Detect NaN in the logits, warn once, and replace it by a very small number. Removed from SGLang as a flag: its
    servers get the environment variable SGLANG_SANITIZE_NAN_LOGITS."""

    enable_p2p_check: bool = key(False)
    """Test whether GPUs can access each other's memory, instead of assuming it."""

    triton_attention_reduce_in_fp32: bool = key(False)
    """Keep partial results of Triton attention in float32, to avoid overflow in float16."""

    triton_attention_num_kv_splits: int = key(8, ge=1)
    """Number of KV splits of Triton attention while decoding. Use more for longer contexts."""

    num_continuous_decode_steps: int = key(1, ge=1)
    """Decoding steps between two scheduling steps. More raise the throughput, but new requests wait longer."""

    enable_memory_saver: bool = key(False)
    """Allow the server to release and reallocate its GPU memory on request."""

    allow_auto_truncate: bool = key(False)
    """Truncate prompts that are too long instead of refusing them. Training then uses another prompt than was
    served."""

    attention_backend: str | None = key(None)
    """Attention kernels: fa3, flashinfer, triton, torch_native and others. Null: SGLang's choice for the GPU and the
    model; fa3 needs a Hopper GPU or newer."""

    enable_multimodal: bool = key(False)
    """Accept images if the model supports them."""

    sampling_backend: str | None = key(None)
    """Sampling kernels: flashinfer or pytorch. Null: SGLang's choice."""

    context_length: int | None = key(32768, ge=1)
    """Maximum number of tokens of a sequence, prompt included. Null: the value in the model's configuration."""

    mem_fraction_static: float | Auto | None = key("auto", gt=0, le=1)
    """Fraction of GPU memory for weights and cache. Lower it if memory runs out. Null: SGLang's choice. `auto` is 0.9,
    less if a trainer shares the GPU or sends new weights to it, and 0.2 of main memory on a CPU."""

    max_total_tokens: int | Auto | None = key("auto", ge=1)
    """Maximum number of tokens in the KV cache. Null: what fits into `mem_fraction_static`. `auto` is null, and a
    planned number if a trainer shares the GPU."""

    max_running_requests: int | None = key(None, ge=1)
    """Maximum number of sequences generated at once. Null: as many as the cache can hold."""

    chunked_prefill_size: int | Auto | None = key("auto", ge=-1)
    """Maximum number of tokens of a prefill chunk. -1: no chunks; null: SGLang's choice. `auto` is 8192 on a GPU and -1
    on a CPU."""

    max_prefill_tokens: int = key(32768, ge=1)
    """Maximum number of prompt tokens in one batch; at least the context length."""

    schedule_policy: str = key("auto")
    """Order of requests: fcfs (first come), lpm (longest prefix in the cache), random and others. `auto` is fcfs:
    SGLang supports priorities (evaluations come last) only with fcfs and lof."""

    schedule_conservativeness: float = key(1.0, ge=0)
    """How conservatively requests are admitted. Raise it if running requests are often evicted from memory."""

    cpu_offload_gb: int = key(0, ge=0)
    """Weights kept in main memory, in GB. Every step copies them."""

    dtype: str = key("bfloat16", choices=DTYPES)
    """Data type of weights and activations. Follows `actor.dtype`."""

    kv_cache_dtype: str = key("auto")
    """Data type of the KV cache: `auto` is that of the model; fp8_e5m2 and fp8_e4m3 save memory, but the trainer cannot
    reproduce their error."""

    dp_size: int = key(1, ge=1)
    """Size of data-parallel attention within one server. `rollout.backend` sets the number of servers."""

    ep_size: int = key(1, ge=1)
    """Expert-parallel size: number of GPUs over which experts are distributed."""

    enable_lora: bool | None = key(None)
    """Serve LoRA adapters. Null: as `actor.use_lora`."""

    max_lora_rank: int | None = key(None, ge=1)
    """Maximum rank of an adapter. Null: that of the actor."""

    lora_target_modules: list[str] | None = key(None)
    """Modules that adapters may change; `all-linear` or `all` for all of them. Null: those of the actor."""

    lora_paths: list[str] | None = key(None)
    """Adapters loaded at the start, each a path or name=path."""

    max_loaded_loras: int = key(1, ge=1)
    """Maximum number of adapters in main memory. At least `max_loras_per_batch`."""

    max_loras_per_batch: int = key(1, ge=1)
    """Maximum number of different adapters in one batch; the base model counts as one."""

    lora_backend: str = key("triton")
    """Kernels for adapters: triton, csgmv, torch_native (the one that runs on a CPU) and others."""

    log_level: str = key("warning")
    """Minimum level of messages that SGLang logs."""

    log_level_http: str | None = key("warning")
    """Minimum level of messages of its HTTP server. Null: as `log_level`."""

    log_requests: bool = key(False)
    """Log every request; `log_requests_level` selects the details."""

    log_requests_level: int = key(0, ge=0, le=3)
    """0: that it was made; 1: also its sampling parameters; 2: also parts of prompt and answer; 3: all of them."""

    show_time_cost: bool = key(False)
    """Log the time of instrumented parts of SGLang's code."""

    enable_metrics: bool = key(True)
    """Export the server's metrics for Prometheus at /metrics."""

    decode_log_interval: int = key(1, ge=1)
    """Decoding steps between two throughput reports, in log and metrics."""

    enable_multithread_load: bool = key(False)
    """Load weights with several threads. Removed as a flag: SGLang always does it now."""

    enable_fast_load: bool = key(False)
    """AReaL's patched loader. SGLang never had it; there is no replacement."""

    python: str | None = key(None)
    """Python interpreter of the environment in which SGLang is installed. Null: that of the environment variable
    AREAL_LIKE_SGLANG_PYTHON, else the one made by
    `make sglang` (with GPUs) or `make sglang-cpu`, else the interpreter of this process."""

    extra_args: dict[str, Any] = key({})
    """Further flags of SGLang by name, as `+sglang.extra_args.page_size=16`: true is a flag without value, a list
    several values."""
