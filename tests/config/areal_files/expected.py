"""Expected class and resolved values of each of AReaL's example files."""

from typing import Any

from areal_like.config.experiment import GRPOConfig, PPOConfig, RWConfig, SFTConfig

MODULE = "tests.config.areal_files"
QWEN = "Qwen/Qwen2.5-1.5B-Instruct"
PLAIN_FILES: dict[str, tuple[type, dict[str, Any]]] = {
    "boba_vllm": (
        GRPOConfig,
        {
            "experiment_name": "boba_on_vllm",
            "cluster.n_nodes": 2,
            "cluster.cluster_name": "big-one",
            "allocation_mode": "vllm.d4p1t2+d8p1t1",
            "total_train_steps": None,
            "actor.group_size": 16,
            "actor.ppo_n_minibatches": 4,
            "actor.optimizer.lr": 1e-5,
            "vllm.model": QWEN,
            "vllm.dtype": "bfloat16",
            "evaluator.freq_epochs": None,
            "recover.retries": 0,
            "launcher.trainer_env_vars": "HCCL_EXEC_TIMEOUT=14400,PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
            "launcher.slurm.trainer_image": "/shared/images/trainer.sif",
        },
    ),
    "clevr_grpo": (
        GRPOConfig,
        {
            "sglang.model_path": "/shared/models/Qwen2.5-VL-3B-Instruct",
            "sglang.enable_multimodal": True,
            "sglang.max_running_requests": 64,
            "actor.adv_norm.group_size": 4,
            "cluster.name_resolve.nfs_record_root": "/shared/experiments/name_resolve/counting_pictures-grpo",
        },
    ),
    "clevr_sft": (SFTConfig, {"tokenizer_path": "/shared/models/Qwen2-VL-7B", "total_train_epochs": 3}),
    "countdown": (
        GRPOConfig,
        {
            "rollout.max_concurrent_rollouts": 16,
            "actor.pad_to_maximum": True,
            "actor.optimizer.lr": 5e-6,
            "actor.reward_norm.group_size": 8,
            "train_dataset.path": "data/countdown/qwen/train_e.jsonl",
            "evaluator.freq_steps": 10,
        },
    ),
    "dapo": (
        GRPOConfig,
        {
            "allocation_mode": "sglang:d4 + fsdp:d4",
            "actor.eps_clip_higher": 0.28,
            "actor.dynamic_sampling": True,
            "actor.overlong_reward_penalty": True,
            "actor.overlong_tokens": 512,
            "actor.overlong_penalty_factor": 1.0,
            "actor.max_new_tokens": 4096,
        },
    ),
    "drgrpo": (
        GRPOConfig,
        {"actor.reward_norm.mean_level": "group", "actor.reward_norm.std_level": None, "ref.optimizer": None},
    ),
    "grpo": (
        GRPOConfig,
        {
            "actor.path": QWEN,
            "ref.path": QWEN,
            "sglang.model_path": QWEN,
            "tokenizer_path": QWEN,
            "actor.backend": "fsdp",
            "actor.optimizer.lr": 1.7e-5,
            "actor.optimizer.eps": 1e-8,
            "actor.group_size": 4,
            "actor.reward_norm.group_size": 4,
            "actor.adv_norm.std_level": "batch",
            "actor.temperature": 1.0,
            "actor.max_new_tokens": 1024,
            "actor.mb_spec.max_tokens_per_mb": 10240,
            "ref.optimizer": None,
            "ref.dtype": "bfloat16",
            "gconfig.stop_token_ids": [],
            "rollout.consumer_batch_size": 256,
            "rollout.experiment_name": "math-grpo",
            "saver.fileroot": "/tmp/areal/experiments",
            "recover.mode": "disabled",
            "recover.freq_secs": 3600,
            "cluster.name_resolve.type": "nfs",
            "cluster.name_resolve.nfs_record_root": "/tmp/areal/name_resolve",
            "train_dataset.pin_memory": True,
            "valid_dataset.max_length": None,
            "sglang.skip_tokenizer_init": True,
            "sglang.max_running_requests": None,
            "stats_logger.wandb.mode": "disabled",
            "launcher.inference_server_cpus_per_gpu": 4,
        },
    ),
    "grpo_deprecated": (GRPOConfig, {"actor.reward_norm": None, "actor.adv_norm.mean_level": "group"}),
    "grpo_megatron": (GRPOConfig, {"actor.backend": "megatron", "ref.backend": "megatron", "actor.kl_ctl": 0.0}),
    "grpo_minimal": (
        GRPOConfig,
        {
            "total_train_steps": 16,
            "actor.optimizer.type": "adam",
            "ref.optimizer.type": "adam",
            "ref.mb_spec.max_tokens_per_mb": 4096,
            "actor.group_size": 8,
            "valid_dataset": None,
        },
    ),
    "gsm8k_ppo": (
        PPOConfig,
        {
            "critic.is_critic": True,
            "critic.path": QWEN,
            "critic.optimizer.lr": 1.7e-5,
            "critic.optimizer.weight_decay": 0.017,
            "critic.ppo_n_minibatches": 1,
            "critic.mask_no_eos_with_zero": False,
            "critic.eps_clip": 0.5,
            "actor.eps_clip": 0.4,
        },
    ),
    "hhrlhf_rw": (
        RWConfig,
        {
            "model.is_critic": True,
            "model.mb_spec.granularity": 2,
            "model.optimizer.lr_scheduler_type": "cosine",
            "train_dataset.type": "rw",
            "tokenizer_path": "Qwen/Qwen2.5-7B",
        },
    ),
    "liteppo": (GRPOConfig, {"actor.adv_norm.mean_level": "group", "actor.adv_norm.std_level": "batch"}),
    "lora": (
        GRPOConfig,
        {
            "actor.use_lora": True,
            "actor.target_modules": ["all-linear"],
            "sglang.enable_lora": True,
            "sglang.max_lora_rank": 32,
            "sglang.lora_target_modules": ["all-linear"],
            "sglang.schedule_policy": "fcfs",
            "rollout.pause_grace_period": 1.0,
        },
    ),
    "reinforce": (
        GRPOConfig,
        {"actor.reward_norm": None, "actor.adv_norm": None, "ref.optimizer": None, "ref.path": QWEN},
    ),
    "reinforce_baseline": (GRPOConfig, {"actor.kl_ctl": 0.001, "actor.kl_estimator": "k2"}),
    "rloo": (
        GRPOConfig,
        {
            "actor.reward_norm.mean_leave1out": True,
            "actor.temperature": 0.9,
            "actor.attn_impl": "flash_attention_2",
            "actor.fsdp.wrap_policy.transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
            "cluster.name_resolve.etcd3_addr": "names.example.org:2379",
            "valid_dataset.batch_size": 64,
            "stats_logger.wandb.tags": ["rloo", "gsm8k"],
            "stats_logger.tensorboard.path": None,
        },
    ),
    "sft": (
        SFTConfig,
        {
            "model.path": "Qwen/Qwen3-1.7B",
            "tokenizer_path": "Qwen/Qwen3-1.7B",
            "model.optimizer.beta2": 0.95,
            "model.experiment_name": "math-sft",
            "train_dataset.type": "sft",
            "stats_logger.wandb.mode": "online",
        },
    ),
    "sft_megatron": (SFTConfig, {"model.backend": "megatron", "evaluator.freq_steps": 1}),
    "sft_minimal": (SFTConfig, {"model.optimizer.type": "adam", "valid_dataset": None, "total_train_steps": 16}),
}
SUBCLASS_FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "multi_turn_math": (
        f"{MODULE}.multi_turn_schema:MultiTurnConfig",
        {"n_trajs": 2, "max_turns": 8, "actor.reward_norm.group_size": 1, "gconfig.n_samples": 1},
    ),
    "search_agent": (
        f"{MODULE}.agent_schemas:SearchAgentConfig",
        {"max_turns": 32, "actor.group_size": 16, "actor.log_agent_stats_keys.3": "score"},
    ),
    "tongyi_deepresearch": (
        f"{MODULE}.agent_schemas:DeepResearchConfig",
        {
            "n_trajs": 8,
            "actor.group_size": 8,
            "actor.adv_norm.group_size": 8,
            "max_llm_calls_per_run": 100,
            "judge_engine.experiment_name": "llm-judge",
            "judge_engine.consumer_batch_size": 128,
            "judge_engine.max_head_offpolicyness": 10000000,
        },
    ),
    "tir_math": (
        f"{MODULE}.agent_schemas:ToolIntegratedConfig",
        {"tir.max_turns": 2, "tir.enable_tools": "python;calculator", "trial_name": "math-with-tools"},
    ),
}
LEGACY_FILES: dict[str, list[str]] = {
    "realhf_ppo": ["actor.type._class", "experiments/grpo.yaml", "dataset.path -> train_dataset.path"],
    "realhf_sft": ["model.type._class", "experiments/sft.yaml", "dataset.train_path -> train_dataset.path"],
    "realhf_benchmark": ["mode", "group_size -> gconfig.n_samples"],
}
