"""Options of SGLang's server. Those of the same name as a flag are handed over as they are."""

from typing import Any

from areal_like.config.fields import Auto, config, key

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


@config
class SGLangConfig:
    """SGLang's server. Counts only where SGLang generates. A flag that SGLang 0.5.21 has lost is named with what took
    its place."""

    model_path: str = key("")
    """Model to serve. It must be the actor's, and follows it where there is one."""

    random_seed: int = key("${seed}")
    """Seed of the server; every replica adds its index. Follows the experiment's `seed`."""

    skip_tokenizer_init: bool = key(False)
    """Do not load a tokenizer: requests and answers are token ids only, and texts in `gconfig.stop` cannot work."""

    disable_cuda_graph: bool = key(False)
    """Do not capture CUDA graphs. Slower, but leaner, and easier to debug."""

    disable_radix_cache: bool | Auto = key("auto")
    """Do not keep the cache of earlier prompts for later ones with the same beginning, such as the other samples of a
    group. Each update of the weights empties it. `auto` is false on a GPU and true on a CPU."""

    disable_cuda_graph_padding: bool = key(False)
    """Use a CUDA graph only where one of exactly the batch's size was captured."""

    enable_nccl_nvls: bool = key(False)
    """Let NCCL use NVLink SHARP where the machine has it."""

    disable_outlines_disk_cache: bool = key(False)
    """Keep the cache of constrained decoding off the disk, where many servers share a file system."""

    disable_custom_all_reduce: bool = key(False)
    """Sum over GPUs with NCCL instead of SGLang's own kernel."""

    disable_overlap_schedule: bool = key(False)
    """Do not plan the next batch on the CPU while the GPU computes the present one."""

    enable_mixed_chunk: bool = key(False)
    """Put pieces of prompts and running answers into one batch. Needs a positive `chunked_prefill_size`."""

    enable_dp_attention: bool = key(False)
    """Attention data-parallel, the rest tensor-parallel, for models that support it. `dp_size` says how wide."""

    enable_ep_moe: bool = key(False)
    """Spread the experts of a mixture model over GPUs. Gone from SGLang: set `ep_size`, and the flag moe_a2a_backend
    in `extra_args`."""

    enable_torch_compile: bool = key(False)
    """Compile the model with torch.compile. The start takes longer."""

    torch_compile_max_bs: int = key(32, ge=1)
    """Largest batch that is compiled for."""

    cuda_graph_max_bs: int | None = key(None, ge=1)
    """Largest batch that a CUDA graph is captured for. Gone from SGLang: cuda_graph_max_bs_decode and
    cuda_graph_max_bs_prefill in `extra_args`."""

    cuda_graph_bs: list[int] | None = key(None, ge=1)
    """The batch sizes that CUDA graphs are captured for. Gone from SGLang: cuda_graph_bs_decode and
    cuda_graph_bs_prefill in `extra_args`."""

    torchao_config: str = key("")
    """Quantization by torchao, such as `int8wo`. Gone from SGLang, and refused at a start; the trainer could not
    reproduce it either."""

    enable_nan_detection: bool = key(False)
    """Look for NaN in the logits, warn once, and put a very small number in its place. Gone from SGLang as a flag: its
    servers get the environment variable SGLANG_SANITIZE_NAN_LOGITS."""

    enable_p2p_check: bool = key(False)
    """Test whether GPUs reach each other's memory, instead of taking it for granted."""

    triton_attention_reduce_in_fp32: bool = key(False)
    """Keep partial results of Triton attention in float32, against overflow in float16."""

    triton_attention_num_kv_splits: int = key(8, ge=1)
    """Pieces that Triton attention cuts the cache into while decoding. More pieces suit longer contexts."""

    num_continuous_decode_steps: int = key(1, ge=1)
    """Tokens generated between two looks at the queue. More is faster in sum, but new requests wait longer."""

    enable_memory_saver: bool = key(False)
    """Let the server release its GPU memory and take it back on command."""

    allow_auto_truncate: bool = key(False)
    """Cut prompts that are too long instead of refusing them. What was trained on is then not what was asked."""

    attention_backend: str | None = key(None)
    """Attention kernels: fa3, flashinfer, triton, torch_native and others. Null: SGLang's choice for the GPU and the
    model; fa3 needs a Hopper GPU or newer."""

    enable_multimodal: bool = key(False)
    """Accept images where the model can read them."""

    sampling_backend: str | None = key(None)
    """Sampling kernels: flashinfer or pytorch. Null: SGLang's choice."""

    context_length: int | None = key(32768, ge=1)
    """Most tokens of a sequence, prompt included. Null: what the model's own configuration says."""

    mem_fraction_static: float | None = key(0.9, gt=0, le=1)
    """Share of GPU memory for weights and cache. Lower it against running out of memory, and where a trainer shares
    the GPU. Null: SGLang's choice."""

    max_running_requests: int | None = key(None, ge=1)
    """Most sequences generated at once. Null: as many as the cache can hold."""

    chunked_prefill_size: int | None = key(-1, ge=-1)
    """Longest piece of a prompt that is read at once. -1 reads prompts whole; null is SGLang's choice."""

    max_prefill_tokens: int = key(32768, ge=1)
    """Most prompt tokens read in one batch; at least the context length in any case."""

    schedule_policy: str = key("auto")
    """Which request a server takes first: fcfs (first come), lpm (longest prefix in the cache), random and others.
    `auto` is fcfs, as SGLang knows priorities (evaluations come last) under fcfs and lof alone."""

    schedule_conservativeness: float = key(1.0, ge=0)
    """How carefully requests are admitted. Raise it when running requests are often pushed back out of memory."""

    cpu_offload_gb: int = key(0, ge=0)
    """GB of weights kept in main memory. Every step then copies them."""

    dtype: str = key("bfloat16", choices=DTYPES)
    """Type of weights and activations. Follows the actor's where there is one."""

    kv_cache_dtype: str = key("auto")
    """Type of the cache: `auto` is that of the model; fp8_e5m2 and fp8_e4m3 save memory, and the trainer cannot
    reproduce their error."""

    dp_size: int = key(1, ge=1)
    """Width of data-parallel attention inside one server. The number of servers is said by `rollout.backend`."""

    ep_size: int = key(1, ge=1)
    """GPUs over which the experts of a mixture model are spread."""

    enable_lora: bool | None = key(None)
    """Serve LoRA adapters. Null: on where `actor.use_lora` is."""

    max_lora_rank: int | None = key(None, ge=1)
    """Largest rank of an adapter. Null: that of the actor."""

    lora_target_modules: list[str] | None = key(None)
    """Modules that adapters may change; `all-linear` or `all` for all of them. Null: those of the actor."""

    lora_paths: list[str] | None = key(None)
    """Adapters loaded at the start, each a path or name=path."""

    max_loaded_loras: int = key(1, ge=1)
    """Most adapters in main memory. At least `max_loras_per_batch`."""

    max_loras_per_batch: int = key(1, ge=1)
    """Most different adapters in one batch; the bare model counts as one."""

    lora_backend: str = key("triton")
    """Kernels for adapters: triton, csgmv, torch_native (the one that runs on a CPU) and others."""

    log_level: str = key("warning")
    """Least serious message that SGLang logs."""

    log_level_http: str | None = key("warning")
    """The same for its HTTP server. Null: as `log_level`."""

    log_requests: bool = key(False)
    """Log every request; `log_requests_level` says how much of it."""

    log_requests_level: int = key(0, ge=0, le=3)
    """0: only that there was one, 1: its sampling parameters too, 2: parts of prompt and answer, 3: all of them."""

    show_time_cost: bool = key(False)
    """Log how long marked pieces of SGLang's code take."""

    enable_metrics: bool = key(True)
    """Offer the server's metrics to Prometheus at /metrics."""

    decode_log_interval: int = key(1, ge=1)
    """Decoding steps between two reports of throughput, in log and metrics."""

    enable_multithread_load: bool = key(False)
    """Load weights with several threads. Gone as a flag, and what SGLang does now anyway."""

    enable_fast_load: bool = key(False)
    """AReaL's patched loader. SGLang itself never had it; nothing replaces it."""

    python: str | None = key(None)
    """Python interpreter of the environment in which SGLang is installed. Null: that of the environment variable
    AREAL_LIKE_SGLANG_PYTHON, else of what `make sglang-cpu` has made (where there are GPUs: of `engines/sglang` in the
    same place), else the one that runs us."""

    extra_args: dict[str, Any] = key({})
    """Further flags for SGLang by name, as `+sglang.extra_args.page_size=16`: true is the bare flag, a list several
    values."""
