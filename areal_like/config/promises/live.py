"""The tests that show the live keys. A key that no pattern here fits is pending: to make one live, write its test and
name it here."""

from types import MappingProxyType

from areal_like.config.promises.engines import OF_ENGINES

_PLAN = "tests/config/test_key_effects.py::"
_RUN = "tests/launcher/test_run_keys.py::"
_ACTOR = "tests/training/test_actor_keys.py::"
_ENGINE = "tests/training/test_engine_keys.py::"
_ROLLOUT = "tests/rollout/test_rollout_keys.py::"
_TRACKERS = "tests/observe/test_tracker_keys.py::"
_CONTROLLER = "tests/rollout/test_controller.py::"
_CRITIC = "tests/training/test_critic.py::"
_PROFILE = "tests/training/test_profile.py::"
_FAKE = "tests/training/test_fake.py::"
_MEMORY = "tests/training/test_memory_keys.py::"
_RECOVERY = "tests/training/test_recovery_keys.py::"
_FOLDER = "tests/training/test_hf_folder.py::"
_TRANSPORTS = "tests/training/test_transports.py::"
_ELSEWHERE = "tests/ring/test_supervised.py::test_parts_of_a_run_may_be_on_other_disks_and_it_goes_on_from_there"
_ATTACHED = "tests/launcher/plan/test_attached.py::"


def _each(test: str, prefix: str, *names: str) -> tuple[tuple[str, str], ...]:
    """One test with a parameter for each key: `{name}` in it is the key's last word."""
    return tuple((prefix + name, test.replace("{name}", name)) for name in names)


_NORM = ("mean_level", "mean_leave1out", "std_level", "std_unbiased", "eps")
_REWARDS = (
    *("reward_scaling", "reward_bias", "reward_clip", "max_new_tokens", "mask_no_eos_with_zero"),
    *("overlong_reward_penalty", "overlong_tokens", "overlong_penalty_factor"),
)
_LOSS = (
    *("eps_clip", "eps_clip_higher", "c_clip"),
    *("use_decoupled_loss", "behav_imp_weight_cap", "recompute_logprob"),
)
_ADAPTER = (
    ("lora_rank", "test_lora_rank_is_the_rank_of_the_adapters"),
    ("lora_alpha", "test_lora_alpha_is_the_strength_of_the_adapters"),
    ("target_modules", "test_target_modules_says_which_layers_get_one"),
    ("lora_dropout", "test_lora_dropout_leaves_out_some_of_what_goes_into_adapters"),
    ("lora_modules_to_save", "test_lora_modules_to_save_are_trained_in_full"),
)
_OF_CHECKPOINTS = (
    ("recover.skip_progress", _RECOVERY + "test_skip_progress_begins_to_count_at_0_and_leaves_the_rest"),
    ("recover.skip_scheduler", _RECOVERY + "test_skip_scheduler_begins_the_schedule_anew_and_leaves_the_rest"),
    (
        "recover.skip_dataloader",
        _RECOVERY + "test_skip_dataloader_reads_the_data_from_its_beginning_and_leaves_the_rest",
    ),
    (
        "recover.keep",
        _RECOVERY + "test_keep_is_how_many_can_be_gone_on_from_beside_those_that_the_saver_keeps[1-wanted0]",
    ),
    ("weights.save_async", _RECOVERY + "test_save_async_lets_training_go_on_while_a_checkpoint_is_written[True]"),
    (
        "weights.save_sharded",
        _FOLDER + "test_save_sharded_splits_weights_into_files_of_at_most_that_size_with_an_index",
    ),
    (
        "weights.save_format",
        _FOLDER + "test_save_format_torch_is_tensors_alone_and_can_be_gone_on_from[words0]",
    ),
    (
        "weights.save_adapter_separately",
        _FOLDER + "test_save_adapter_separately_writes_what_peft_loads_beside_the_merged_weights[safetensors]",
    ),
)
_SCHEDULE = ("lr_scheduler_type", "warmup_steps", "decay_steps", "min_lr")
_OPTIMIZER = (
    *("type", "lr", "weight_decay", "beta1", "beta2", "eps", "gradient_clipping", "offload"),
    *("min_lr_ratio", "lr_scheduler_type", "warmup_steps_proportion"),
    *("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"),
)
_LEARNING = (
    *("group_size", "ppo_n_minibatches", "discount", "gae_lambda", "kl_ctl", "kl_estimator", "dynamic_sampling"),
    *("gradient_checkpointing", "grad_reduce_dtype", *_REWARDS, *_LOSS),
    *("use_lora", "peft_type", "lora_rank", "lora_alpha", "target_modules"),
    *(f"optimizer.{name}" for name in _OPTIMIZER),
    *(f"{norm}.{name}" for norm in ("reward_norm", "adv_norm") for name in (*_NORM, "group_size")),
)
_FSDP = (
    ("offload_params", "test_offload_params_keeps_parameters_in_host_memory"),
    (
        "wrap_policy.transformer_layer_cls_to_wrap",
        "test_transformer_layer_cls_to_wrap_names_what_is_sharded_one_by_one",
    ),
)
_OF_MEMORY = (
    ("fsdp.reshard_after_forward", "test_reshard_after_forward_gives_layers_back_at_once"),
    ("fsdp.dp_replicate", "test_dp_replicate_is_how_many_replicas_there_are"),
    ("fsdp.load_using_meta", "test_load_using_meta_builds_the_model_without_memory"),
    ("master_dtype", "test_master_dtype_is_that_of_the_weights_that_are_updated"),
    ("moe_use_grouped_mm", "test_moe_use_grouped_mm_multiplies_all_experts_at_once"),
    ("compile.fullgraph", "test_fullgraph_is_what_the_compiler_is_told"),
    ("activation_checkpointing.freq", "test_freq_is_of_how_many_layers_one_computes_again"),
    ("debug.num_layers", "test_num_layers_keeps_the_first_layers"),
    ("dist_timeout_s", "test_dist_timeout_is_how_long_ranks_wait_for_each_other[actor-grpo]"),
    ("activation_offloading.pin_memory", "test_a_key_of_activation_offloading[pin_memory-False]"),
    (
        "activation_offloading.max_inflight_activations",
        "test_a_key_of_activation_offloading[max_inflight_activations-2]",
    ),
)
_ADVANTAGE = ("std_norm", "length_weighted_mean", "leave_one_out", "neg_clipped")
_RATIO = ("level", "length_norm", "mask_high", "mask_low", "sequence_mask_low")
_FILEROOTS = ("saver.fileroot", "recover.fileroot", "stats_logger.fileroot", "evaluator.fileroot")
_COPIES = ("group_size", "temperature", "reward_norm.group_size", "adv_norm.group_size")
_CLOCKS = ("freq_epochs", "freq_steps", "freq_secs")
_WANDB = (*("mode", "entity", "project", "name", "job_type", "group", "notes", "tags", "config", "id_suffix"),)
_SWANLAB = ("project", "name", "config", "logdir", "mode")

_OF_A_RUN = (
    ("seed", _RUN + "test_seed_says_which_rows_come_when[{experiment}]"),
    *_each(
        _RUN + "test_{name}_ends_the_run[{experiment}]",
        "",
        "total_train_epochs",
        "total_train_steps",
        "total_train_n_seqs",
    ),
    ("tokenizer_path", _RUN + "test_tokenizer_path_says_how_text_becomes_tokens[{experiment}]"),
    *((f"*.{clock}", _RUN + "test_a_clock_strikes_when_its_key_says[{path}-{experiment}]") for clock in _CLOCKS),
    (
        "recover.mode",
        _RUN + "test_recover_mode_says_what_follows_from_a_death_and_what_a_start_goes_on_from[{experiment}]",
    ),
    ("recover.retries", _RUN + "test_recover_retries_is_how_often_in_a_row"),
    ("cluster.cluster_name", _RUN + "test_cluster_name_is_told_of_the_machines"),
    ("cluster.name_resolve.nfs_record_root", _RUN + "test_nfs_record_root_is_where_names_are_entered"),
    ("launcher.*_env_vars", "tests/launcher/plan/test_processes.py::test_variables_of_the_user_reach_their_roles"),
)
_OF_ROWS = tuple(
    (f"{section}.{name}", f"{_ROLLOUT}{test}[{section}]")
    for section in ("train_dataset", "valid_dataset")
    for name, test in (
        ("path", "test_path_is_the_file_of_rows"),
        ("type", "test_type_is_what_a_row_must_have"),
        ("max_length", "test_max_length_leaves_long_rows_out"),
    )
)
_OF_A_MODEL = (
    *(
        (f"{section}.{name}", f"{_ENGINE}{test}[{section}]")
        for section in ("actor", "ref", "critic", "model")
        for name, test in (
            ("path", "test_path_is_where_the_weights_are"),
            ("init_from_scratch", "test_init_from_scratch_begins_with_random_weights"),
            ("dtype", "test_dtype_is_what_is_computed_in"),
            ("disable_dropout", "test_disable_dropout_takes_it_out_of_the_model"),
            ("is_critic", "test_is_critic_gives_the_head_that_a_model_needs"),
            ("attn_impl", "test_attn_impl_is_what_transformers_is_told"),
            ("mb_spec.n_mbs", "test_n_mbs_is_the_least_number_of_micro_batches"),
            ("mb_spec.max_tokens_per_mb", "test_max_tokens_per_mb_is_the_most_that_a_micro_batch_has"),
            ("mb_spec.granularity", "test_granularity_keeps_neighbours_together"),
            ("pad_to_maximum", "test_pad_to_maximum_makes_all_micro_batches_of_one_size"),
        )
    ),
    *(
        (f"{section}.{name}", f"{_ENGINE}{test}[{section}]")
        for section in ("actor", "critic", "model")
        for name, test in (
            ("gradient_checkpointing", "test_gradient_checkpointing_computes_layers_again"),
            ("grad_reduce_dtype", "test_grad_reduce_dtype_is_what_gradients_are_added_up_in"),
            ("use_lora", "test_use_lora_trains_adapters_alone"),
            ("peft_type", "test_peft_type_is_the_kind_of_adapter"),
            *_ADAPTER[:3],
        )
    ),
    *(
        (f"{section}.fsdp.{name}", f"{_MEMORY}{test}[{section}]")
        for section in ("actor", "ref", "critic", "model")
        for name, test in _FSDP
    ),
    *(
        (f"{section}.optimizer.{name}", f"{_MEMORY}test_a_key_of_the_optimizer[{section}-{name}]")
        for section in ("actor", "critic", "model")
        for name in _OPTIMIZER
    ),
    ("actor.backend", _ENGINE + "test_backend_is_the_number_of_ranks[actor-grpo]"),
    ("model.backend", _ENGINE + "test_backend_is_the_number_of_ranks[model-sft]"),
    ("ref.backend", _ENGINE + "test_the_backend_of_the_reference_is_that_of_the_actor"),
)
_OF_THE_ACTOR = (
    *_each(_ACTOR + "test_a_key_of_rewards[{name}]", "actor.", *_REWARDS),
    *_each(_ACTOR + "test_a_key_of_reward_norm[{name}]", "actor.reward_norm.", *_NORM),
    *_each(_ACTOR + "test_a_key_of_adv_norm[{name}]", "actor.adv_norm.", *_NORM),
    *_each(_ACTOR + "test_later_rewards_count_less_by[{name}]", "actor.", "discount", "gae_lambda"),
    *_each(_ACTOR + "test_a_key_of_the_loss[{name}]", "actor.", *_LOSS),
    ("actor.kl_ctl", _ACTOR + "test_kl_ctl_is_the_weight_of_the_distance_to_a_reference_that_is_loaded_for_it_alone"),
    ("actor.kl_estimator", _ACTOR + "test_kl_estimator_says_how_it_is_measured"),
    ("actor.ppo_n_minibatches", _ACTOR + "test_ppo_n_minibatches_is_the_number_of_updates"),
    ("actor.dynamic_sampling", _ROLLOUT + "test_dynamic_sampling_leaves_groups_out_whose_rewards_are_equal"),
    *_each(_ACTOR + "test_a_copy_of_a_number_must_agree[{path}]", "actor.", *_COPIES),
    ("ref.temperature", _ACTOR + "test_a_copy_of_a_number_must_agree[{path}]"),
    *_each(_ACTOR + "test_a_key_about_learning_means_nothing_to_the_reference[{name}]", "ref.", *_LEARNING),
)
_OF_THE_CRITIC = (
    ("critic.eps_clip", _CRITIC + "test_eps_clip_is_how_far_a_step_may_move_a_value"),
    ("critic.ppo_n_minibatches", _CRITIC + "test_ppo_n_minibatches_is_the_number_of_its_updates"),
    ("critic.mask_no_eos_with_zero", _CRITIC + "test_mask_no_eos_with_zero_is_that_of_the_actor"),
    ("critic.backend", _CRITIC + "test_its_backend_is_that_of_the_actor"),
    *(
        (
            f"{section}.weight_update_mode",
            f"{_CRITIC}test_weight_update_mode_means_nothing_to_who_publishes_nothing[{section}-{experiment}]",
        )
        for section, experiment in (("ref", "grpo"), ("critic", "ppo"), ("model", "sft"))
    ),
)
_OF_SAMPLING = (
    ("gconfig.top_p", _ROLLOUT + "test_top_p_leaves_out_what_is_beyond_its_share"),
    ("gconfig.top_k", _ROLLOUT + "test_top_k_leaves_out_all_but_the_likeliest"),
    ("gconfig.frequency_penalty", _ROLLOUT + "test_frequency_penalty_makes_tokens_of_the_answer_rarer"),
    ("gconfig.repetition_penalty", _ROLLOUT + "test_repetition_penalty_makes_tokens_rarer_that_were_seen"),
    ("gconfig.min_new_tokens", _ROLLOUT + "test_min_new_tokens_is_what_an_answer_has_before_it_ends"),
    ("gconfig.stop", _ROLLOUT + "test_stop_ends_an_answer_with_the_token_that_completes_a_text"),
    ("gconfig.seed", _ROLLOUT + "test_seed_of_sampling_is_what_seeds_of_groups_come_from"),
)
_OF_ROLLOUTS = (
    *_OF_SAMPLING,
    ("gconfig.n_samples", _ROLLOUT + "test_n_samples_is_the_number_of_answers"),
    ("gconfig.max_new_tokens", _ROLLOUT + "test_max_new_tokens_cuts_an_answer_off"),
    ("gconfig.max_tokens", _ROLLOUT + "test_max_tokens_counts_the_prompt"),
    ("gconfig.greedy", _ROLLOUT + "test_greedy_takes_the_likeliest_token_always"),
    ("gconfig.temperature", _ROLLOUT + "test_a_low_temperature_takes_likelier_tokens"),
    ("gconfig.stop_token_ids", _ROLLOUT + "test_stop_token_ids_end_an_answer"),
    ("async_training", _ROLLOUT + "test_async_training_lets_groups_be_generated_ahead"),
    ("rollout.max_concurrent_rollouts", _ROLLOUT + "test_max_concurrent_rollouts_is_how_many_groups_are_under_way"),
    ("rollout.queue_size", _ROLLOUT + "test_queue_size_is_how_many_wait_or_run"),
    ("rollout.consumer_batch_size", _ROLLOUT + "test_consumer_batch_size_must_be_the_batch_size"),
    (
        "rollout.max_head_offpolicyness",
        _ROLLOUT + "test_max_head_offpolicyness_is_how_far_ahead_groups_are_generated",
    ),
    ("rollout.schedule_policy", _ROLLOUT + "test_schedule_policy_says_which_server_is_next"),
    ("rollout.request_retries", _ROLLOUT + "test_request_retries_is_how_often_a_failed_group_is_tried_again"),
    ("rollout.request_timeout", "tests/rollout/episodes/test_client.py::test_past_the_limit_it_is_said_which"),
    ("rollout.setup_timeout", _CONTROLLER + "test_servers_that_never_come_are_told_by_name_and_limit"),
    ("rollout.pause_grace_period", _CONTROLLER + "test_a_grace_period_lies_between_pause_and_update"),
    ("rollout.enable_rollout_tracing", _CONTROLLER + "test_tracing_writes_every_stage_into_the_log"),
    (
        "rollout.check_trajectory_format",
        "tests/rollout/episodes/test_workflows.py::test_trajectories_are_looked_through_when_asked_for",
    ),
)
_OF_WEIGHTS = (
    ("actor.weight_update_mode", _TRANSPORTS + "test_a_transport_is_found_by_each_of_its_names"),
    *_each(_TRANSPORTS + "test_host_and_port_are_where_trainer_and_servers_meet", "weights.broadcast.", "host", "port"),
    (
        "weights.broadcast.timeout_s",
        "tests/weights/test_collective.py::test_a_wait_past_its_limit_says_what_for_and_which_key_sets_it",
    ),
)
_OF_SERVERS = (
    (
        "rollout.server_addresses",
        "tests/launcher/plan/test_processes.py::test_each_server_that_runs_already_has_an_attendant_and_takes_no_device",
    ),
    ("rollout.server_type", _ATTACHED + "test_a_service_that_takes_no_weights_is_refused_in_training"),
    ("rollout.api_key_var", _ATTACHED + "test_the_key_is_looked_for_where_it_may_be"),
    (
        "rollout.backend",
        "tests/launcher/plan/test_processes.py::test_servers_take_the_first_gpus_and_trainers_the_next",
    ),
)
_OF_TRACKERS = (
    *_each(_TRACKERS + "test_a_key_of_wandb_is_what_its_run_is_opened_with[{name}]", "stats_logger.wandb.", *_WANDB),
    *(
        (f"stats_logger.wandb.wandb_{option}", f"{test}[wandb_{option}-{option}]")
        for test in (_TRACKERS + "test_the_server_and_the_key_of_wandb_are_settings_of_its_run",)
        for option in ("base_url", "api_key")
    ),
    *_each(
        _TRACKERS + "test_a_key_of_swanlab_is_what_its_run_is_opened_with[{name}]", "stats_logger.swanlab.", *_SWANLAB
    ),
    ("stats_logger.wandb.id", _TRACKERS + "test_an_id_of_wandb_is_that_of_a_run_that_goes_on"),
    *_each(
        _TRACKERS + "test_a_key_of_log_extras_says_what_is_sent_besides_metrics[wandb-{name}]",
        "stats_logger.wandb.log_extras.",
        *("samples", "distributions", "interval"),
    ),
    ("stats_logger.swanlab.api_key", _TRACKERS + "test_the_key_of_swanlab_logs_in"),
    ("stats_logger.tensorboard.path", _TRACKERS + "test_the_path_of_tensorboard_is_where_its_files_are"),
)

_OF_MEASURING = (
    (
        "bench",
        "tests/launcher/plan/test_bench.py::test_bench_is_five_steps_without_evaluation_checkpoints_or_tracking[{experiment}]",
    ),
    ("profiler.trace_path", _PROFILE + "test_trace_path_is_where_the_timeline_of_all_steps_is[grpo]"),
    ("profiler.memory_path", _PROFILE + "test_memory_path_is_where_every_step_and_rank_has_a_snapshot"),
    ("train_dataset.fake", _FAKE + "test_fake_is_what_a_step_trains_on[{experiment}]"),
    *_each(_FAKE + "test_a_key_of_fake_is_a_size_of_a_step[{name}]", "train_dataset.fake.", "batch_size", "seq_len"),
)

LIVE: MappingProxyType[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "areal": (
            ("allocation_mode", _PLAN + "test_allocation_mode_says_what_runs_where[{experiment}]"),
            ("experiment_name", _PLAN + "test_experiment_name_names_the_run_directory[{experiment}]"),
            ("trial_name", _PLAN + "test_trial_name_names_the_run_directory[{experiment}]"),
            ("cluster.fileroot", _PLAN + "test_fileroot_is_where_the_run_directory_stands"),
            ("cluster.n_nodes", _PLAN + "test_n_nodes_spreads_the_processes"),
            ("cluster.n_gpus_per_node", _PLAN + "test_n_gpus_per_node_bounds_the_gpus_of_a_node"),
            ("*.experiment_name", _PLAN + "test_a_copy_must_agree[{path}]"),
            ("*.trial_name", _PLAN + "test_a_copy_must_agree[{path}]"),
            *_each(_ELSEWHERE, "", *_FILEROOTS),
            *_OF_A_RUN,
            *_OF_ROWS,
            *_OF_A_MODEL,
            *_OF_THE_ACTOR,
            *_OF_THE_CRITIC,
            *_OF_ROLLOUTS,
            *_OF_TRACKERS,
            *_OF_WEIGHTS,
            *_OF_SERVERS,
            *OF_ENGINES,
        ),
        "prime_rl": (
            *_OF_WEIGHTS,
            *_OF_SERVERS,
            *OF_ENGINES,
            *_OF_SAMPLING,
            *_OF_MEASURING,
            *_OF_CHECKPOINTS,
            *_OF_TRACKERS,
            *_each(_ACTOR + "test_a_key_of_advantages_relative_to_the_group[{name}]", "actor.advantage.", *_ADVANTAGE),
            *_each(_ACTOR + "test_a_key_of_the_ratio[{name}]", "actor.ratio.", *_RATIO),
            *((f"actor.{name}", f"{_ENGINE}{test}[actor]") for name, test in _ADAPTER),
            *((f"actor.{name}", _MEMORY + test) for name, test in _OF_MEMORY),
            *(
                (f"actor.optimizer.{name}", f"{_MEMORY}test_a_key_of_the_optimizer[actor-{name}]")
                for name in (*_OPTIMIZER, *_SCHEDULE, "momentum", "nesterov")
            ),
            ("actor.grad_reduce_dtype", _ENGINE + "test_grad_reduce_dtype_is_what_gradients_are_added_up_in[actor]"),
            ("actor.attn_impl", _ENGINE + "test_attn_impl_is_what_transformers_is_told[actor]"),
            ("actor.init_from_scratch", _ENGINE + "test_init_from_scratch_begins_with_random_weights[actor]"),
        ),
    }
)
"""source -> (pattern of the home, node id of the test). The first pattern that fits counts; a key is live when every
one of its homes has a test. In the node id `{path}` is the home, and `{experiment}` each kind of experiment that
has it."""
