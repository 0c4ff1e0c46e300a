"""The four kinds of experiment: every section at its place, with the facts they share flowing between them."""

from areal_like.config.fields import config, key, optional_section, section
from areal_like.config.sections.actor import PPOActorConfig, PPOCriticConfig
from areal_like.config.sections.checkpoints import RecoverConfig, SaverConfig
from areal_like.config.sections.cluster import ClusterSpecConfig, LauncherConfig, SchedulerConfig
from areal_like.config.sections.data import DatasetConfig, RewardConfig, TaskConfig, WorkflowConfig
from areal_like.config.sections.engines.embedded import EmbeddedConfig
from areal_like.config.sections.engines.sglang import SGLangConfig
from areal_like.config.sections.engines.vllm import vLLMConfig
from areal_like.config.sections.environments import CurriculumConfig, EnvironmentsConfig
from areal_like.config.sections.evaluation import EvaluatorConfig
from areal_like.config.sections.generation import GenerationHyperparameters
from areal_like.config.sections.rollout import InferenceEngineConfig
from areal_like.config.sections.trackers import LogConfig, ProfilerConfig, StatsLoggerConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.config.sections.weights import WeightsConfig

NAME_PATTERN = r"^[^\s/\\.][^\s/\\]{0,127}$"
NAME_HINT = "a name of at most 128 characters without '/', '\\' and white space that does not begin with a dot"


@config
class ValidDatasetConfig(DatasetConfig):
    """The data that is evaluated on: like the training data in what is not said."""

    type: str = key("${train_dataset.type}", choices=("rl", "sft", "rw"))
    """What a row holds. Follows `train_dataset.type`."""

    fields: dict[str, str] = key("${train_dataset.fields}")
    """What the rows call what is wanted of them. Follows `train_dataset.fields`."""

    as_chat: bool = key("${train_dataset.as_chat}")
    """Whether a prompt that is a text is the message of a user. Follows `train_dataset.as_chat`."""

    loss_on: str = key("${train_dataset.loss_on}", choices=("answers", "all"))
    """Of which tokens the loss is measured. Follows `train_dataset.loss_on`."""

    batch_size: int = key("${train_dataset.batch_size}", ge=1)
    """Rows that are evaluated at a time, over all ranks. Follows `train_dataset.batch_size`."""


@config
class BaseExperimentConfig:
    """What every kind of experiment has."""

    experiment_name: str = key(required=True, pattern=NAME_PATTERN, pattern_hint=NAME_HINT)
    """Name of the experiment: the folder of its trials, and the first part of every name they register."""

    trial_name: str = key("auto", pattern=NAME_PATTERN, pattern_hint=NAME_HINT)
    """Name of this run of it. `auto` takes the next free one: r0001, r0002 and so on."""

    cluster: ClusterSpecConfig = section(ClusterSpecConfig)
    """The machines, the folder that all of them see, and how processes find each other."""

    allocation_mode: str = key("auto")
    """Which engines run on how many devices, such as `sglang:d4+fsdp:d4`. `auto` (or `heuristic`) decides by the
    machine and by what `rollout.backend` and `actor.backend` say; `manual` goes by these two alone."""

    seed: int = key(1, ge=0)
    """The one seed. Data order, sampling, initialization and dropout each derive their own from it."""

    total_train_epochs: int = key(1, ge=1)
    """Passes over the training data after which the run is done."""

    total_train_steps: int | None = key(None, ge=1)
    """Steps after which the run is done even if epochs are left. Null: the epochs decide."""

    total_train_n_seqs: int | None = key(None, ge=1)
    """Sequences trained on after which the run is done even if epochs are left. Null: the epochs decide."""

    tokenizer_path: str = key("")
    """Folder or name on the Hub of the tokenizer. Empty: the model's own."""

    train_dataset: DatasetConfig = section(DatasetConfig)
    """The data that is trained on."""

    valid_dataset: ValidDatasetConfig | None = optional_section(ValidDatasetConfig)
    """The data that is evaluated on. Null: no evaluation on data."""

    saver: SaverConfig = section(SaverConfig)
    """Which checkpoints are kept for good."""

    evaluator: EvaluatorConfig = section(EvaluatorConfig)
    """When and on how much the model is evaluated."""

    stats_logger: StatsLoggerConfig = section(StatsLoggerConfig)
    """Where metrics go besides the run directory."""

    recover: RecoverConfig = section(RecoverConfig)
    """What is written to go on after a failure or a stop, and when that is done."""

    sglang: SGLangConfig = section(SGLangConfig)
    """Settings of SGLang servers; only used where these run."""

    vllm: vLLMConfig = section(vLLMConfig)
    """Settings of vLLM servers; only used where these run."""

    launcher: LauncherConfig = section(LauncherConfig)
    """How processes are started: what each is given, and what the cluster's scheduler wants to know."""

    scheduler: SchedulerConfig = section(SchedulerConfig)
    """Services of AReaL's inner cluster, kept so that its files load."""

    embedded: EmbeddedConfig = section(EmbeddedConfig)
    """Settings of the embedded inference engine; only used where it runs."""

    weights: WeightsConfig = section(WeightsConfig)
    """How weights are saved, and passed on to the inference servers."""

    log: LogConfig = section(LogConfig)
    """What the log files and the terminal show."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Traces of the trainers' time and memory."""

    objective: str | None = key(None)
    """Name of the metric that a sweeper gets as the result of this run. Null: the last held-out score."""

    resume: str | None = key(None)
    """A run to go on with: its folder, `experiment/trial`, or a trial name that is unique. Null: a run of its own."""

    resume_step: int | None = key(None, ge=-1)
    """Which checkpoint of `resume` to go on from: its step (0 is one too), or -1 for the newest complete one. Null: the
    newest as well."""

    bench: bool = key(False)
    """Measure instead of train: five steps, the first not counted, without evaluation, checkpoints and tracking
    services, then a table of throughput."""

    enable_token_export: bool = key(False)
    """Write every sequence that was trained on as a line of JSON into `token_exports/` of the run: tokens, mask,
    advantages, and log-probabilities of sampler and trainer."""


@config
class GRPOConfig(BaseExperimentConfig):
    """Reinforcement learning without a value model."""

    tokenizer_path: str = key("${actor.path}")
    """Folder or name on the Hub of the tokenizer. Follows `actor.path`."""

    sglang: SGLangConfig = section(
        SGLangConfig, model_path="${actor.path}", random_seed="${seed}", dtype="${actor.dtype}"
    )
    """Settings of SGLang servers; only used where these run."""

    vllm: vLLMConfig = section(
        vLLMConfig,
        model="${actor.path}",
        seed="${seed}",
        dtype="${actor.dtype}",
        trust_remote_code="${actor.trust_remote_code}",
    )
    """Settings of vLLM servers; only used where these run."""

    embedded: EmbeddedConfig = section(
        EmbeddedConfig, model_path="${actor.path}", dtype="${actor.dtype}", seed="${seed}"
    )
    """Settings of the embedded inference engine; only used where it runs."""

    async_training: bool = key(True)
    """Generate ahead while training runs, as far as `rollout.max_head_offpolicyness` lets it. False: every batch comes
    from the newest weights alone, as if that were 0."""

    gconfig: GenerationHyperparameters = section(GenerationHyperparameters)
    """How answers are sampled for training."""

    rollout: InferenceEngineConfig = section(InferenceEngineConfig)
    """How answers are generated: by what, how many at once, how far ahead."""

    actor: PPOActorConfig = section(PPOActorConfig, optimizer={})
    """The policy that is trained."""

    ref: PPOActorConfig = section(
        PPOActorConfig,
        path="${actor.path}",
        attn_impl="${actor.attn_impl}",
        init_from_scratch="${actor.init_from_scratch}",
        mb_spec__n_mbs="${actor.mb_spec.n_mbs}",
        mb_spec__granularity="${actor.mb_spec.granularity}",
        mb_spec__max_tokens_per_mb="${actor.mb_spec.max_tokens_per_mb}",
        pad_to_maximum="${actor.pad_to_maximum}",
        disable_dropout="${actor.disable_dropout}",
        dtype="${actor.dtype}",
        optimizer=None,
        backend="${actor.backend}",
        fsdp__dp_replicate="${actor.fsdp.dp_replicate}",
        trust_remote_code="${actor.trust_remote_code}",
        model_impl="${actor.model_impl}",
        moe_use_grouped_mm="${actor.moe_use_grouped_mm}",
        dist_timeout_s="${actor.dist_timeout_s}",
    )
    """The frozen model that the policy is held near to; only loaded where `actor.kl_ctl` is above 0. Keys about
    learning mean nothing here."""

    task: TaskConfig = section(TaskConfig)
    """The task: where prompts come from and what belongs to them."""

    workflow: WorkflowConfig = section(WorkflowConfig)
    """How one prompt becomes trajectories."""

    reward: RewardConfig = section(RewardConfig)
    """How answers are rewarded."""

    environments: EnvironmentsConfig = section(EnvironmentsConfig)
    """Environments to train on instead of a task, and how they are mixed."""

    curriculum: CurriculumConfig = section(CurriculumConfig)
    """Which prompts come next, and which groups are let into a batch, by how hard they have shown to be."""


@config
class PPOConfig(GRPOConfig):
    """Reinforcement learning with a value model."""

    critic: PPOCriticConfig = section(
        PPOCriticConfig,
        path="${actor.path}",
        attn_impl="${actor.attn_impl}",
        init_from_scratch="${actor.init_from_scratch}",
        is_critic=True,
        mb_spec__n_mbs="${actor.mb_spec.n_mbs}",
        mb_spec__granularity="${actor.mb_spec.granularity}",
        mb_spec__max_tokens_per_mb="${actor.mb_spec.max_tokens_per_mb}",
        pad_to_maximum="${actor.pad_to_maximum}",
        disable_dropout="${actor.disable_dropout}",
        gradient_checkpointing="${actor.gradient_checkpointing}",
        dtype="${actor.dtype}",
        grad_reduce_dtype="${actor.grad_reduce_dtype}",
        optimizer={},
        backend="${actor.backend}",
        fsdp__dp_replicate="${actor.fsdp.dp_replicate}",
        trust_remote_code="${actor.trust_remote_code}",
        model_impl="${actor.model_impl}",
        master_dtype="${actor.master_dtype}",
        moe_use_grouped_mm="${actor.moe_use_grouped_mm}",
        dist_timeout_s="${actor.dist_timeout_s}",
        mask_no_eos_with_zero="${actor.mask_no_eos_with_zero}",
    )
    """The value model, trained beside the policy."""


@config
class SFTConfig(BaseExperimentConfig):
    """Supervised fine-tuning on prompts and answers."""

    tokenizer_path: str = key("${model.path}")
    """Folder or name on the Hub of the tokenizer. Follows `model.path`."""

    train_dataset: DatasetConfig = section(DatasetConfig, type="sft")
    """The data that is trained on."""

    model: TrainEngineConfig = section(TrainEngineConfig, optimizer={})
    """The model that is trained."""

    task: TaskConfig = section(TaskConfig)
    """The task: where rows come from and how they become text."""


@config
class RWConfig(BaseExperimentConfig):
    """Training of a reward model on pairs of a better and a worse answer."""

    tokenizer_path: str = key("${model.path}")
    """Folder or name on the Hub of the tokenizer. Follows `model.path`."""

    train_dataset: DatasetConfig = section(DatasetConfig, type="rw")
    """The data that is trained on."""

    model: TrainEngineConfig = section(TrainEngineConfig, is_critic=True, optimizer={})
    """The reward model that is trained. Pairs stay together in a micro-batch."""

    task: TaskConfig = section(TaskConfig)
    """The task: where pairs come from and how they become text."""


EXPERIMENTS: dict[str, type[BaseExperimentConfig]] = {
    "grpo": GRPOConfig,
    "ppo": PPOConfig,
    "sft": SFTConfig,
    "reward_model": RWConfig,
}
"""Name of a kind of experiment -> its schema."""
