"""What the ledger of keys says of single keys: which effects need a GPU, what must equal another key, notes."""

from types import MappingProxyType

from areal_like.config.dependent_keys import dependent_keys
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.schema import Schema

_ENGINES = ("PPOActor Configuration", "PPOCritic Configuration", "TrainEngine Configuration")
_SGLANG_ON_GPU = (
    "disable_cuda_graph",
    "disable_cuda_graph_padding",
    "enable_nccl_nvls",
    "disable_custom_all_reduce",
    "cuda_graph_max_bs",
    "cuda_graph_bs",
    "enable_p2p_check",
    "triton_attention_reduce_in_fp32",
    "triton_attention_num_kv_splits",
    "enable_memory_saver",
    "attention_backend",
    "cpu_offload_gb",
    "kv_cache_dtype",
)
_VLLM_ON_GPU = (
    "enforce_eager",
    "cpu_offload_gb",
    "gpu_memory_utilization",
    "enable_sleep_mode",
)
NEVER = "never"
GPU_SEEN = MappingProxyType(
    {
        ("areal", "FSDPEngine Configuration", "offload_params"): NEVER,
        ("areal", "Optimizer Configuration", "offload"): NEVER,
        ("areal", "Dataset Configuration", "pin_memory"): NEVER,
        **{("areal", title, "attn_impl"): NEVER for title in _ENGINES},
        **{("areal", "SGLang Configuration", name): NEVER for name in _SGLANG_ON_GPU},
        **{("areal", "vLLM Configuration", name): NEVER for name in _VLLM_ON_GPU},
        ("prime_rl", "train", "memory_profiler_path"): NEVER,
        ("prime_rl", "train", "model.attn"): NEVER,
        ("prime_rl", "train", "model.impl"): NEVER,
        ("prime_rl", "train", "model.moe_use_grouped_mm"): NEVER,
        ("prime_rl", "train", "model.ac_offloading.pin_memory"): NEVER,
        ("prime_rl", "train", "model.ac_offloading.max_inflight_activations"): NEVER,
        ("prime_rl", "infer", "gpu_memory_utilization"): NEVER,
        ("prime_rl", "infer", "model.enforce_eager"): NEVER,
    }
)
"""(source, group, key) -> date on which the effect was last seen on a GPU, or never. Keys absent here need none."""

_ENGINE_LOST_IT = "newer engines no longer have it"
_DIVIDED = "counts rollouts there and prompts here: divided by the rollouts per example"
_DIMS = "becomes a dimension of the backend"
NOTES = MappingProxyType(
    {
        **{
            ("areal", "SGLang Configuration", name): _ENGINE_LOST_IT
            for name in (
                "enable_ep_moe",
                "cuda_graph_max_bs",
                "cuda_graph_bs",
                "enable_multithread_load",
                "enable_fast_load",
            )
        },
        ("areal", "SGLang Configuration", "enable_nan_detection"): "becomes the variable SGLANG_SANITIZE_NAN_LOGITS",
        ("areal", "vLLM Configuration", "swap_space"): _ENGINE_LOST_IT,
        ("areal", "vLLM Configuration", "max_seq_len_to_capture"): _ENGINE_LOST_IT,
        ("prime_rl", "orch", "batch_size"): _DIVIDED,
        ("prime_hosted", "", "batch_size"): _DIVIDED,
        ("prime_rl", "orch", "num_train_workers"): "becomes the data-parallel dimension of the backend",
        ("prime_rl", "orch", "buffer.type"): "simple | difficulty-pool | online-difficulty, with _ for -",
        ("prime_rl", "orch", "log.vf_level"): "warn is warning",
        ("prime_rl", "orch", "wandb.offline"): "true is offline, false is online",
        ("prime_rl", "train", "model.ep"): _DIMS,
        ("prime_rl", "train", "model.tp"): _DIMS,
        ("prime_rl", "train", "model.cp"): _DIMS,
        ("prime_rl", "train", "scheduler.type"): "linear is warmup_stable_decay",
        ("prime_rl", "train", "weight_broadcast.inference_world_size"): "follows from the dimensions of the backend",
        ("prime_rl", "infer", "parallel.tp"): _DIMS,
        ("prime_rl", "infer", "parallel.dp"): _DIMS,
    }
)
"""(source, group, key) -> a note for the reader of the page."""

_COPIES = {copy: fact for cls in EXPERIMENTS.values() for copy, fact in dependent_keys(Schema.of(cls)).items()}
SAME_AS = MappingProxyType({**_COPIES, "ref.backend": "actor.backend", "critic.backend": "actor.backend"})
"""Dotted path -> the key that it must equal; a start refuses another value."""

_NOT_SPLIT = "splitting a model is not built"
PENDING = MappingProxyType(
    {
        ("prime_rl", "train", "model.ep"): _NOT_SPLIT,
        ("prime_rl", "train", "model.tp"): _NOT_SPLIT,
        ("prime_rl", "train", "model.cp"): _NOT_SPLIT,
    }
)
"""(source, group, key) -> what is missing, although its home is shown: the home means more here than the key there."""
