"""How far each seed key is: why some are refused, which effects need a GPU, and the tests that show the live ones.

What `live` names a test for is live; a key that stands in no table is pending.
"""

from fnmatch import fnmatchcase
from types import MappingProxyType

from areal_like.config.promises.homes import Home
from areal_like.config.promises.live import LIVE

_NO_SERVICE = "no such service exists here; a reward is a function: reward.name, reward.args"
REFUSED = MappingProxyType(
    {
        ("areal", "Scheduler Configuration", "endpoint"): "there is no scheduler service; where processes run is "
        "cluster.type and allocation_mode",
        ("areal", "Scheduler Configuration", "deploy_mode"): "servers and trainers are placed by allocation_mode",
        ("areal", "Scheduler Configuration", "functioncall_service_domain"): _NO_SERVICE,
        ("areal", "Scheduler Configuration", "reward_functioncall_config"): _NO_SERVICE,
        ("areal", "Scheduler Configuration", "reward_model_path"): "reward.name=model serves the reward model in "
        "reward.args.path",
        (
            "areal",
            "SGLang Configuration",
            "torchao_config",
        ): "SGLang no longer quantizes with torchao; leave it out, or give another kind by sglang.extra_args",
        ("areal", "Scheduler Configuration", "reward_model_service_url"): "a reward function may call one: "
        "reward.name, reward.args; reward.name=model serves a model beside the run",
    }
)
"""(source, group, key) -> why it is refused, and what to write instead."""

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
    "swap_space",
    "cpu_offload_gb",
    "max_seq_len_to_capture",
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
"""(source, group, key) -> a remark for the reader of the page."""


def tests_of(source: str, homes: tuple[Home, ...]) -> tuple[str, ...]:
    """Node ids of the tests that show a key at all its homes; empty when one of them has none."""
    found: list[str] = []
    for home in homes:
        test = next((test for pattern, test in LIVE.get(source, ()) if _fits(home.path, pattern)), None)
        if test is None:
            return ()
        found += [test.format(path=home.path, experiment=experiment) for experiment in home.experiments]
    return tuple(dict.fromkeys(found))


def _fits(path: str, pattern: str) -> bool:
    """Most patterns are plain paths; fnmatch would make a regular expression of each."""
    return path == pattern or ("*" in pattern and fnmatchcase(path, pattern))
