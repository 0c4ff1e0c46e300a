"""What the keys of the engines that come with the package mean. Apart from their sections, so that what names an engine
alone, as `--help` does, imports none of these. The first engine needs no installation."""

from areal_like.config.sections.engines.base import EngineKeys

EMBEDDED = EngineKeys(
    name="embedded",
    title="embedded",
    model_key="embedded.model_path",
    length_key="embedded.context_length",
    dtype_key="embedded.dtype",
    memory_key="embedded.kv_cache_tokens",
    cache_tokens_key="embedded.kv_cache_tokens",
    requests_key="embedded.max_running_requests",
    device_key="embedded.device",
    threads_key="embedded.threads",
    dims="d",
)

SGLANG = EngineKeys(
    name="sglang",
    title="SGLang",
    model_key="sglang.model_path",
    length_key="sglang.context_length",
    dtype_key="sglang.dtype",
    memory_key="sglang.mem_fraction_static",
    cache_tokens_key="sglang.max_total_tokens",
    requests_key="sglang.max_running_requests",
    kv_dtype_key="sglang.kv_cache_dtype",
    images_key="sglang.enable_multimodal",
    gpu_rank=1,
    segments=(r"sglang_(loads|host_pool)_[^\s/]+", r"sgl_shm_[^\s/]+", r"multi_tokenizer_args_\d+"),
    synonyms={
        "sglang.gpu_memory_utilization": "sglang.mem_fraction_static",
        "sglang.max_model_len": "sglang.context_length",
    },
)

VLLM = EngineKeys(
    name="vllm",
    title="vLLM",
    model_key="vllm.model",
    length_key="vllm.max_model_len",
    dtype_key="vllm.dtype",
    memory_key="vllm.gpu_memory_utilization",
    cache_bytes_key="vllm.kv_cache_memory_bytes",
    requests_key="vllm.max_num_seqs",
    extension_key="vllm.worker_extension_cls",
    gpu_rank=0,
    segments=(r"vllm_(offload|ec)_[^\s/]+",),
    newer={
        "vllm.no_enable_chunked_prefill": "set vllm.enable_chunked_prefill instead",
        "vllm.no_enable_prefix_caching": "set vllm.enable_prefix_caching instead",
    },
    prime_rl={
        "gpu_memory_utilization": "vllm.gpu_memory_utilization",
        "seed": "vllm.seed",
        "model.name": "vllm.model",
        "model.dtype": "vllm.dtype",
        "model.max_model_len": "vllm.max_model_len",
        "model.enforce_eager": "vllm.enforce_eager",
        "model.trust_remote_code": "vllm.trust_remote_code",
        "model.enable_auto_tool_choice": "vllm.enable_auto_tool_choice",
        "model.tool_call_parser": "vllm.tool_call_parser",
    },
    synonyms={
        "gpu_memory_utilization": "vllm.gpu_memory_utilization",
        "vllm.max_tokens": "gconfig.max_new_tokens",
        "vllm.mem_fraction_static": "vllm.gpu_memory_utilization",
        "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
        "vllm_tensor_parallel_size": "rollout.backend",
    },
)

SHIPPED = (EMBEDDED, SGLANG, VLLM)
