"""The four kinds of experiment: GRPO, PPO, supervised fine-tuning and reward models."""

from typing import Any

from areal_like.config.fields import config, key, no_effect, optional_section, refused, section
from areal_like.config.sections.actor import PPOActorConfig, PPOCriticConfig
from areal_like.config.sections.agent import AgentConfig
from areal_like.config.sections.checkpoints import RecoverConfig, SaverConfig
from areal_like.config.sections.cluster import ClusterSpecConfig, LauncherConfig, SchedulerConfig
from areal_like.config.sections.curriculum import CurriculumConfig
from areal_like.config.sections.data import ANSWER_SOURCES, ONLY_SUPERVISED, DatasetConfig, TaskConfig, WorkflowConfig
from areal_like.config.sections.engines.all_sections import EngineSections, PolicyEngineSections
from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.config.sections.evaluation import EvaluatorConfig
from areal_like.config.sections.generation import GenerationHyperparameters
from areal_like.config.sections.logs import LogConfig, ProfilerConfig
from areal_like.config.sections.reward import RewardConfig
from areal_like.config.sections.rollout import InferenceEngineConfig
from areal_like.config.sections.trackers import StatsLoggerConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.config.sections.watchdog import WatchdogConfig
from areal_like.config.sections.weights import WeightsConfig

UNSEEN = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069"
"""Characters that a terminal obeys instead of showing them."""
NAME_PATTERN = rf"^[^\s/\\.{UNSEEN}][^\s/\\{UNSEEN}]{{0,127}}$"
NAME_HINT = "a name of at most 128 characters without '/', '\\' and white space that does not begin with a dot"


@config
class ValidDatasetConfig(DatasetConfig):
    """The evaluation data. Keys that are not set follow `train_dataset`."""

    type: str = key("${train_dataset.type}", choices=("rl", "sft", "rw"))
    """What a row holds. Follows `train_dataset.type`."""

    fields: dict[str, str] = key("${train_dataset.fields}")
    """Names of the columns. Follows `train_dataset.fields`."""

    require: dict[str, str] = key("${train_dataset.require}")
    """Values that columns have in every row that has them. Follows `train_dataset.require`."""

    as_chat: bool = key("${train_dataset.as_chat}")
    """Treat a prompt that is a text as a user message. Follows `train_dataset.as_chat`."""

    prompt_template: str | None = key("${train_dataset.prompt_template}")
    """The prompt as a text with names of columns in braces. Follows `train_dataset.prompt_template`."""

    system_prompt: str | None = key("${train_dataset.system_prompt}")
    """A system message before each prompt that has none. Follows `train_dataset.system_prompt`."""

    remove_text: list[str] = key("${train_dataset.remove_text}")
    """Texts that are removed from prompts. Follows `train_dataset.remove_text`."""

    multiple_choice: str | None = key("${train_dataset.multiple_choice}")
    """Column with the choices of a question. Follows `train_dataset.multiple_choice`."""

    answer_from: str | None = key("${train_dataset.answer_from}", choices=ANSWER_SOURCES)
    """How `answer` is found in its column. Follows `train_dataset.answer_from`."""

    loss_on: str = key("${train_dataset.loss_on}", choices=("answers", "all"), rules=(ONLY_SUPERVISED,))
    """Tokens in the loss. Follows `train_dataset.loss_on`."""

    batch_size: int = key(
        "${train_dataset.batch_size}",
        ge=1,
        rules=(no_effect("servers limit how many rows are evaluated at once", kinds=("grpo",)),),
    )
    """Rows evaluated at a time, over all ranks, in supervised training; the result does not depend on it. Follows
    `train_dataset.batch_size`."""

    shuffle: bool = key(True, rules=(no_effect("every evaluation uses the same rows with equal weight"),))
    """Accepted, as `train_dataset` has it."""

    drop_last: bool = key(True)
    """Accepted, no effect: rows that do not fill a batch are evaluated, too."""

    pin_memory: bool = key(True, rules=(no_effect("servers generate the answers of an evaluation", kinds=("grpo",)),))
    """Copy batches of evaluations to a CUDA device from pinned memory, in supervised training. No effect without
    one."""


@config
class BaseExperimentConfig:
    """Keys and sections of every kind of experiment."""

    experiment_name: str = key(required=True, pattern=NAME_PATTERN, pattern_hint=NAME_HINT)
    """Name of the experiment: the folder of its trials, and the first part of the names that their processes
    register."""

    trial_name: str = key("auto", pattern=NAME_PATTERN, pattern_hint=NAME_HINT)
    """Name of this run of the experiment. `auto` takes the next free one: r0001, r0002 and so on."""

    cluster: ClusterSpecConfig = section(ClusterSpecConfig)
    """Machines, shared folder, and how processes find each other."""

    allocation_mode: str = key("auto")
    """Which engines run on how many devices, such as `sglang:d4+fsdp:d4`. `auto` (or `heuristic`) derives it from the
    machine, `rollout.backend` and `actor.backend`; `manual` uses only these two keys."""

    seed: int = key(1, ge=0)
    """Seed of the run. The seeds of data order, sampling, initialization and dropout are derived from it."""

    total_train_epochs: int = key(1, ge=1)
    """Passes over the training data, after which the run ends."""

    total_train_steps: int | None = key(None, ge=0)
    """Number of steps after which the run ends, even if epochs are left. 0: the model is evaluated and not trained.
    Null: no limit."""

    total_train_n_seqs: int | None = key(None, ge=1)
    """Number of trained sequences after which the run ends, even if epochs are left; a conversation counts once. Null:
    no limit."""

    tokenizer_path: str = key("")
    """Folder of the tokenizer, or its name on the Hub. Empty: that of the model."""

    chat_template_args: dict[str, Any] = key({})
    """Arguments of the tokenizer's chat template, for all prompts of training and evaluation:
    `{enable_thinking: false}`. Add one with `+chat_template_args.name=`. A template ignores names that it does not
    use."""

    train_dataset: DatasetConfig = section(DatasetConfig)
    """The training data."""

    valid_dataset: ValidDatasetConfig | None = optional_section(ValidDatasetConfig)
    """The evaluation data. Null: no evaluation on data."""

    known_datasets: dict[str, Any] = key({})
    """Further known datasets by name, and the keys that `train_dataset` and `valid_dataset` get for their rows:
    `{ours: {paths: [org/ours], fields: {prompt: question}, rl: {reward: math}}}`. `rl`, `sft` and `rw` hold what is for
    rows of that type alone, `reward` and `workflow` name what answers get. What is set elsewhere has priority."""

    saver: SaverConfig = section(SaverConfig)
    """Which checkpoints are kept permanently."""

    evaluator: EvaluatorConfig = section(EvaluatorConfig)
    """When and on which rows the model is evaluated."""

    stats_logger: StatsLoggerConfig = section(StatsLoggerConfig)
    """Trackers that metrics are sent to."""

    recover: RecoverConfig = section(RecoverConfig)
    """What is written to resume after a failure or a stop, and when."""

    launcher: LauncherConfig = section(LauncherConfig)
    """How processes are started: environment variables, and settings of Slurm and Ray."""

    scheduler: SchedulerConfig = section(SchedulerConfig)
    """Services of AReaL, accepted so that its files load."""

    weights: WeightsConfig = section(WeightsConfig)
    """How weights are saved, and sent to the inference servers."""

    watchdog: WatchdogConfig = section(WatchdogConfig)
    """How long a process may make no progress before it is named and killed."""

    log: LogConfig = section(LogConfig)
    """Level and content of the logs."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiles of the trainers' time and memory."""

    objective: str | None = key(None)
    """Metric that a sweeper gets as the result of this run. Null: the last held-out score."""

    resume: str | None = key(None)
    """Run to resume: its folder, `experiment/trial`, or a unique trial name. Null: start a new run."""

    resume_step: int | None = key(None, ge=-1)
    """Checkpoint of `resume` to resume from: its step (from 0), or -1 for the newest complete one. Null: the newest
    complete one."""

    bench: bool = key(False)
    """Benchmark: run five steps (the first is warm-up) without evaluation, checkpoints and tracking services, then
    print a table of throughput."""

    enable_token_export: bool = key(
        False,
        rules=(
            refused(
                "answers are scored as a whole, and no token is predicted; set it to false", kinds=("reward_model",)
            ),
        ),
    )
    """Write every trained sequence as a line of JSON to `token_exports/` of the run: tokens, mask, advantages, and
    log-probabilities of sampler and trainer."""


@config
class GRPOConfig(PolicyEngineSections, BaseExperimentConfig):
    """Reinforcement learning without a value model."""

    tokenizer_path: str = key("${actor.path}")
    """Folder of the tokenizer, or its name on the Hub. Follows `actor.path`."""

    async_training: bool = key(True)
    """Generate ahead during training, as far as `rollout.max_head_offpolicyness` allows. False: every batch comes from
    the newest weights, as if that key were 0."""

    gconfig: GenerationHyperparameters = section(GenerationHyperparameters)
    """How answers are sampled for training."""

    rollout: InferenceEngineConfig = section(InferenceEngineConfig)
    """How answers are generated: engine, concurrency, staleness."""

    actor: PPOActorConfig = section(PPOActorConfig, optimizer={})
    """The policy."""

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
        gradient_checkpointing="${actor.gradient_checkpointing}",
        dtype="${actor.dtype}",
        optimizer=None,
        backend="${actor.backend}",
        fsdp__dp_replicate="${actor.fsdp.dp_replicate}",
        fsdp__reduce_gradients="${actor.fsdp.reduce_gradients}",
        trust_remote_code="${actor.trust_remote_code}",
        model_impl="${actor.model_impl}",
        moe_use_grouped_mm="${actor.moe_use_grouped_mm}",
        dist_timeout_s="${actor.dist_timeout_s}",
    )
    """The frozen reference model of the KL penalty; loaded only if `actor.kl_ctl` is above 0. Keys about learning have
    no effect here."""

    task: TaskConfig = section(TaskConfig)
    """The task: a program that generates prompts."""

    workflow: WorkflowConfig = section(WorkflowConfig)
    """How one prompt becomes trajectories."""

    agent: AgentConfig = section(AgentConfig)
    """The program that is trained as it is, for the workflow `agent`."""

    reward: RewardConfig = section(RewardConfig)
    """How answers are rewarded."""

    environments: EnvironmentsConfig = section(EnvironmentsConfig)
    """Environments to train on instead of a task."""

    curriculum: CurriculumConfig = section(CurriculumConfig)
    """Which prompts are drawn next, and which groups enter a batch, by their measured difficulty."""


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
        fsdp__reduce_gradients="${actor.fsdp.reduce_gradients}",
        trust_remote_code="${actor.trust_remote_code}",
        model_impl="${actor.model_impl}",
        master_dtype="${actor.master_dtype}",
        moe_use_grouped_mm="${actor.moe_use_grouped_mm}",
        dist_timeout_s="${actor.dist_timeout_s}",
        mask_no_eos_with_zero="${actor.mask_no_eos_with_zero}",
    )
    """The value model, trained with the policy."""


@config
class SFTConfig(EngineSections, BaseExperimentConfig):
    """Supervised fine-tuning on prompts and answers."""

    tokenizer_path: str = key("${model.path}")
    """Folder of the tokenizer, or its name on the Hub. Follows `model.path`."""

    train_dataset: DatasetConfig = section(DatasetConfig, type="sft")
    """The training data."""

    model: TrainEngineConfig = section(TrainEngineConfig, optimizer={})
    """The trained model."""

    task: TaskConfig = section(TaskConfig)
    """The task: a program that generates rows."""


@config
class RWConfig(EngineSections, BaseExperimentConfig):
    """Training of a reward model on pairs of a better and a worse answer."""

    tokenizer_path: str = key("${model.path}")
    """Folder of the tokenizer, or its name on the Hub. Follows `model.path`."""

    train_dataset: DatasetConfig = section(DatasetConfig, type="rw")
    """The training data."""

    model: TrainEngineConfig = section(TrainEngineConfig, is_critic=True, optimizer={})
    """The reward model. Pairs stay together in a micro-batch."""

    task: TaskConfig = section(TaskConfig)
    """The task: a program that generates pairs."""


EXPERIMENTS: dict[str, type[BaseExperimentConfig]] = {
    "grpo": GRPOConfig,
    "ppo": PPOConfig,
    "sft": SFTConfig,
    "reward_model": RWConfig,
}
"""Name of a kind of experiment -> its schema."""
