"""Suggestions for unknown keys: the right key if it is clear, else none."""

import pytest

from areal_like.config.dialects.prime_rl.keys import PATHS
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.names import LOCAL_SYNONYMS, SYNONYMS, synonyms
from areal_like.config.schema import Schema
from areal_like.config.suggest import nearest, suggest


def names(kind: str) -> list[str]:
    return Schema.of(EXPERIMENTS[kind]).names()


IN_THE_SAME_SECTION = [
    ("actor.clip_eps", "actor.eps_clip"),
    ("actor.eps_clip_high", "actor.eps_clip_higher"),
    ("actor.lrr", "actor.optimizer.lr"),
    ("actor.model", "actor.path"),
    ("actor.optim.lr", "actor.optimizer.lr"),
    ("actor.optimizer.epsilon", "actor.optimizer.eps"),
    ("actor.optimizer.warmup", "actor.optimizer.warmup_steps"),
    ("actor.optmizer.lr", "actor.optimizer.lr"),
    ("actor.weight_decay", "actor.optimizer.weight_decay"),
    ("Actor.path", "actor.path"),
    ("actr", "actor"),
    ("actr.lr", "actor.optimizer.lr"),
    ("actr.path", "actor.path"),
    ("cluster.file_root", "cluster.fileroot"),
    ("evaluator.bench", "evaluator.benchmarks"),
    ("evaluator.freq", "evaluator.freq_steps"),
    ("evaluator.rollouts_per_example", "evaluator.n_samples"),
    ("experiment_nam", "experiment_name"),
    ("gconfig.max-new-tokens", "gconfig.max_new_tokens"),
    ("gconfig.max_tokens_new", "gconfig.max_new_tokens"),
    ("gconfig.min_tokens", "gconfig.min_new_tokens"),
    ("gconfig.n", "gconfig.n_samples"),
    ("gconfig.stop_words", "gconfig.stop"),
    ("ref.optimizer.learning_rate", "ref.optimizer.lr"),
    ("reff.path", "ref.path"),
    ("saver.freq_step", "saver.freq_steps"),
    ("saver.interval", "saver.freq_steps"),
    ("tokenizer", "tokenizer_path"),
    ("vllm.max_len", "vllm.max_model_len"),
]
OF_OTHER_SYSTEMS = [
    ("actor.learning_rate", "actor.optimizer.lr"),
    ("actor.micro_batch_size", "actor.mb_spec.n_mbs"),
    ("actor_rollout_ref.actor.clip_ratio_high", "actor.eps_clip_higher"),
    ("actor_rollout_ref.actor.kl_loss_coef", "actor.kl_ctl"),
    ("actor_rollout_ref.actor.optim.lr", "actor.optimizer.lr"),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "actor.mb_spec.n_mbs"),
    ("actor_rollout_ref.model.path", "actor.path"),
    ("actor_rollout_ref.rollout.n", "gconfig.n_samples"),
    ("actor_rollout_ref.rollout.temperature", "gconfig.temperature"),
    ("algorithm.gamma", "actor.discount"),
    ("algorithm.kl_ctrl.kl_coef", "actor.kl_ctl"),
    ("beta", "actor.kl_ctl"),
    ("bf16", "actor.dtype"),
    ("ckpt.interval", "recover.freq_steps"),
    ("data.max_response_length", "gconfig.max_new_tokens"),
    ("data.train_batch_size", "train_dataset.batch_size"),
    ("dtype", "actor.dtype"),
    ("env", "environments"),
    ("epsilon", "actor.eps_clip"),
    ("eval.sampling.temperature", "evaluator.gconfig.temperature"),
    ("eval_steps", "evaluator.freq_steps"),
    ("evaluator.batch_size", "valid_dataset.batch_size"),
    ("gradient_accumulation_steps", "actor.mb_spec.n_mbs"),
    ("importance_sampling_level", "actor.ratio.level"),
    ("inference.parallel.tp", "rollout.backend"),
    ("log_level", "log.level"),
    ("logging_steps", "stats_logger"),
    ("loss_type", "actor.loss_aggregation"),
    ("lr", "actor.optimizer.lr"),
    ("max_off_policy_steps", "rollout.max_head_offpolicyness"),
    ("max_steps", "total_train_steps"),
    ("mb_spec.n_mbs", "actor.mb_spec.n_mbs"),
    ("model.path", "actor.path"),
    ("models.path", "actor.path"),
    ("monitors.wandb.project", "stats_logger.wandb.project"),
    ("num_generation", "gconfig.n_samples"),
    ("num_iterations", "actor.ppo_n_minibatches"),
    ("optim.betas1", "actor.optimizer.beta1"),
    ("orchestrator.sampling.max_tokens", "gconfig.max_new_tokens"),
    ("report_to", "stats_logger"),
    ("rollout.max_tokens", "gconfig.max_tokens"),
    ("rollout.n", "gconfig.n_samples"),
    ("rollout.use_lora", "actor.use_lora"),
    ("sampling.max_tokens", "gconfig.max_new_tokens"),
    ("sampling.temperature", "gconfig.temperature"),
    ("saver.keep", "recover.keep"),
    ("scale_rewards", "actor.reward_norm.std_level"),
    ("sglang.gpu_memory_utilization", "sglang.mem_fraction_static"),
    ("rollout.tp", "rollout.backend"),
    ("sglang.tp_size", "rollout.backend"),
    ("tensor_model_parallel_size", "rollout.backend"),
    ("trainer.logger", "stats_logger"),
    ("trainer.nnodes", "cluster.n_nodes"),
    ("trainer.optim.lr", "actor.optimizer.lr"),
    ("trainer.seed", "seed"),
    ("trainer.total_epochs", "total_train_epochs"),
    ("use_kl_loss", "actor.kl_ctl"),
    ("vllm.tensor_parallel_size", "rollout.backend"),
    ("wandb", "stats_logger.wandb"),
    ("wandb.mode", "stats_logger.wandb.mode"),
    ("warmup_ratio", "actor.optimizer.warmup_steps_proportion"),
]
NOT_CLEAR = [
    "actor.strategy",
    "checkpoint.interval",
    "critic.path",
    "vllm.max_lora_rank",
    "actor.freq",
    "actor.foo",
    "adv_estimator",
    "algorithm.adv_estimator",
    "environments.train.0.args",
    "evaluator.temperature",
    "foo",
    "foo.bar",
    "foo.log",
    "foo.name",
    "gconfig.max",
    "my_very_own_thing",
    "n",
    "path",
    "port",
    "prox_logp_method",
    "saver.path",
    "stats_logger.path",
    "teacher",
    "x",
    "",
]
OF_OTHER_KINDS = [
    ("grpo", "criticc", "critic"),
    ("grpo", "criticc.optimizer.lr", "critic"),
    ("grpo", "models", "actor"),
    ("ppo", "critic.learning_rate", "critic.optimizer.lr"),
    ("ppo", "critic.optim.lr", "critic.optimizer.lr"),
    ("ppo", "critic.kl_coef", None),
    ("ppo", "criticc", "critic"),
    ("ppo", "learning_rate", "actor.optimizer.lr"),
    ("ppo", "optimizer.weight_decay", "actor.optimizer.weight_decay"),
    ("reward_model", "model_path", "model.path"),
    ("sft", "actr.path", "model.path"),
    ("sft", "model.lrr", "model.optimizer.lr"),
    ("sft", "bf16", "model.dtype"),
    ("sft", "gconfg", "gconfig"),
    ("sft", "learning_rate", "model.optimizer.lr"),
    ("sft", "model.learning_rate", "model.optimizer.lr"),
    ("sft", "num_generations", None),
    ("sft", "rolout.backend", "rollout"),
    ("sft", "trainer.optim.lr", "model.optimizer.lr"),
]


@pytest.mark.parametrize(("wrong", "right"), [*IN_THE_SAME_SECTION, *OF_OTHER_SYSTEMS])
def test_a_wrong_name_suggests_the_right_one(wrong: str, right: str) -> None:
    assert suggest(wrong, names("grpo")) == right


@pytest.mark.parametrize("wrong", NOT_CLEAR)
def test_an_ambiguous_name_gives_no_suggestion(wrong: str) -> None:
    assert suggest(wrong, names("grpo")) is None


@pytest.mark.parametrize(("kind", "wrong", "right"), OF_OTHER_KINDS)
def test_suggestions_depend_on_the_kind_of_experiment(kind: str, wrong: str, right: str | None) -> None:
    assert suggest(wrong, names(kind)) == right


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_a_typo_suggests_its_key_and_no_hidden_one(kind: str) -> None:
    known = names(kind)
    for name in (n for n in known if "[" not in n and len(n.rpartition(".")[2]) > 6):
        found = suggest(name[:-3] + name[-2:], known)
        assert found is not None and found.rpartition(".")[0] == name.rpartition(".")[0], (name, found)


HIDDEN_PREFIXES = ("ref.", "evaluator.gconfig.", "evaluator.save.")


def test_hidden_keys_are_not_suggested_from_other_sections() -> None:
    leaves = {n.rpartition(".")[2] for n in names("grpo") if n.startswith(HIDDEN_PREFIXES)}
    for leaf in leaves:
        for wrong in (leaf, f"foo.{leaf}", f"rollout.{leaf}", f"actor.{leaf}"):
            assert not (suggest(wrong, names("grpo")) or "").startswith(HIDDEN_PREFIXES), wrong


def test_the_table_is_sorted_and_maps_to_keys() -> None:
    every = {name for kind in EXPERIMENTS for name in names(kind)}
    assert list(SYNONYMS) == sorted(SYNONYMS) and list(LOCAL_SYNONYMS) == sorted(LOCAL_SYNONYMS)
    assert set(SYNONYMS.values()) <= every
    assert set(LOCAL_SYNONYMS.values()) <= {name.rpartition(".")[2] for name in every}
    assert set(PATHS["prime_rl", "orch"]) & set(synonyms())


def test_what_begins_with_the_name_is_suggested_before_what_is_spelt_like_it() -> None:
    kinds = ("none", "simple", "difficulty_pool", "online_difficulty", "by_environment")
    assert nearest("online", kinds)[0] == "online_difficulty" and nearest("on", kinds) == ["none"]
    assert nearest("Difficulty-p", kinds)[0] == "difficulty_pool" and nearest("smiple", kinds) == ["simple"]
