"""Keys of each trained or frozen model: source, precision, sharding, micro-batches, memory, LoRA."""

from areal_like.config.fields import Auto, config, key, must_follow, no_effect, not_built, optional_section, section
from areal_like.config.sections.optimizer import OptimizerConfig

CAUTIOUS_TOKENS = 8192
"""Tokens of a micro-batch where the size of the model or of the GPU is not known, and a first remedy without memory."""


@config
class FSDPWrapPolicy:
    """Which modules of a model become sharding units."""

    transformer_layer_cls_to_wrap: list[str] | None = key(None)
    """Class names of the layers that are sharded one by one. Null: the model's own list of modules not to split."""


@config
class FSDPEngineConfig:
    """Sharding of parameters, gradients and optimizer state."""

    wrap_policy: FSDPWrapPolicy | None = optional_section(FSDPWrapPolicy)
    """Which layers are sharded one by one. Null: decided by the model."""

    offload_params: bool = key(False)
    """Keep sharded parameters, gradients and optimizer state in host memory, and load one layer at a time. For models
    that do not fit otherwise; slow."""

    reshard_after_forward: bool = key(True)
    """Free a layer's gathered parameters after its forward pass, and gather them again for the backward pass. False is
    faster where memory allows."""

    dp_replicate: int = key(1, ge=1)
    """Number of full replicas; each is sharded (hybrid sharding). Must divide the data-parallel size."""

    reduce_gradients: str = key("auto", choices=("auto", "per_micro_batch", "per_step"))
    """When gradients are summed over ranks. `per_micro_batch`: a rank keeps its shard of the gradients only, in
    `master_dtype`, or with `dp_replicate` in `grad_reduce_dtype`. `per_step`: it keeps all of them, in
    `grad_reduce_dtype`, until the last micro-batch: less communication. `auto`: per micro-batch where several GPUs
    share a model, unless its weights are stored in bfloat16."""

    load_using_meta: bool = key(False)
    """Build the model on the meta device, and load only each rank's shard. Saves host memory with large models."""


@config
class MicroBatchSpec:
    """How a batch is split into micro-batches. The gradient does not depend on it."""

    n_mbs: int | None = key(1, ge=1)
    """Minimum number of micro-batches; more where `max_tokens_per_mb` requires them. Null: as few as fit."""

    granularity: int = key(1, ge=1)
    """Number of consecutive sequences that stay together in one micro-batch and one update; 2 for pairs. Must divide
    the batch."""

    max_tokens_per_mb: int | Auto | None = key("auto", ge=1)
    """Maximum number of tokens in a micro-batch; lower it when memory runs out. A longer sequence is an error. Null: no
    limit. `auto` derives it from the memory of the GPU, and is null on a CPU."""

    @property
    def token_limit(self) -> int | None:
        """None where there is no limit, or nothing has resolved `auto`."""
        return None if self.max_tokens_per_mb == "auto" else self.max_tokens_per_mb


@config
class CompileConfig:
    """torch.compile of each layer."""

    fullgraph: bool = key(False)
    """Fail if a layer cannot be compiled as one graph, instead of splitting it."""

    required: bool = key(True)
    """Fail if layers cannot be compiled, or then compute something else than before, which is tried before the first
    step. False: they then run uncompiled, with a warning."""


@config
class ActivationCheckpointingConfig:
    """Which layers recompute their activations in the backward pass."""

    freq: int = key(1, ge=1)
    """Recompute every n-th layer: 1 is all of them; 2 is every other one, which costs memory and saves time."""


@config
class ActivationOffloadingConfig:
    """Activations are held in host memory until the backward pass."""

    pin_memory: bool = key(True)
    """Use page-locked host memory: copies are faster and overlap with computation."""

    max_inflight_activations: int = key(5, ge=1)
    """Maximum number of activations being copied to the host at once. More overlap better and hold more GPU memory."""


@config
class ModelDebugConfig:
    """Smaller models, for debugging."""

    num_layers: int | None = key(None, ge=1)
    """Number of layers to keep, from the first. Null: all."""


ONLY_LORA = no_effect(unless="use_lora")


@config
class TrainEngineConfig:
    """A model of the trainer."""

    experiment_name: str = key("${experiment_name}", rules=(must_follow(),))
    """Experiment that this belongs to. Follows the experiment's own name."""

    trial_name: str = key("${trial_name}", rules=(must_follow(),))
    """Trial that this belongs to. Follows the experiment's own trial."""

    path: str = key("")
    """The model: a folder with a Hugging Face checkpoint, its name on the Hub, or `builtin:` and a name."""

    attn_impl: str = key(
        "auto", choices=("auto", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "eager")
    )
    """How attention is computed. `auto` takes the fastest that this machine has for packed sequences. `sdpa` is torch's
    own: on a GPU its flash kernel, cuDNN where that is faster, or in float32 its memory-efficient kernel. `eager` is
    unfused, for comparison."""

    init_from_scratch: bool = key(False)
    """Start from random weights: only the configuration and tokenizer of `path` are used."""

    is_critic: bool = key(False)
    """Replace the output head by one with a single number per token."""

    mb_spec: MicroBatchSpec = section(MicroBatchSpec)
    """How a rank's batch is split into micro-batches."""

    pad_to_maximum: bool = key(False)
    """Pad every packed micro-batch to `mb_spec.max_tokens_per_mb`, so that all shapes are equal. Requires that key."""

    disable_dropout: bool = key(False)
    """Set every dropout probability of the model to 0."""

    gradient_checkpointing: bool | Auto = key("auto")
    """Recompute activations in the backward pass instead of keeping them: much less memory, about a quarter more time.
    `activation_checkpointing` selects the layers. `auto` is false on a GPU where large micro-batches fit without it,
    and otherwise true."""

    dtype: str = key("bfloat16", choices=("float32", "bfloat16", "float16"))
    """Precision of forward and backward pass."""

    grad_reduce_dtype: str = key("float32", choices=("float32", "bfloat16", "float16"))
    """Precision in which gradients are summed over ranks."""

    optimizer: OptimizerConfig | None = optional_section(OptimizerConfig)
    """How the model is trained. Null: the model is frozen."""

    weight_update_mode: str = key("disk", choices=("disk", "collective", "adapter", "xccl", "nccl", "filesystem"))
    """How new weights reach the servers: through files, by direct transfer, or as a LoRA adapter only. `xccl` and
    `nccl` mean `collective`, `filesystem` means `disk`. Only the actor publishes weights."""

    backend: str = key("auto")
    """Training engine and how it is split over devices, such as `fsdp:d4` or `fsdp:d2t2`. `auto` (or nothing) decides
    by `allocation_mode` and the machine."""

    fsdp: FSDPEngineConfig = section(FSDPEngineConfig)
    """How FSDP shards the model."""

    use_lora: bool = key(False)
    """Train low-rank adapters; the weights of the model stay frozen."""

    lora_rank: int = key(32, ge=1, rules=(ONLY_LORA,))
    """Rank of the adapters."""

    lora_alpha: float = key(16.0, ge=0, rules=(ONLY_LORA,))
    """Scale of the adapters: their output is multiplied by lora_alpha / lora_rank."""

    target_modules: list[str] = key([], rules=(ONLY_LORA,))
    """Linear layers that get an adapter, by the last parts of their names (`q_proj`, `mlp.up_proj`) or by regular
    expressions that match a whole name. Empty, or `all-linear`: all except the output head."""

    peft_type: str = key("lora", choices=("lora",))
    """Kind of adapter."""

    trust_remote_code: bool = key(False)
    """Run Python code from the checkpoint. Only for checkpoints whose authors you trust."""

    model_impl: str = key("hf", choices=("hf", "liger_kernel", "custom"), rules=(not_built("{}", "use hf"),))
    """Implementation of the model: transformers, transformers with Liger's fused kernels, or the implementation of this
    framework where it has one for this kind of model."""

    master_dtype: str = key("float32", choices=("float32", "bfloat16"))
    """Precision of the weights that the optimizer updates. With bfloat16 small updates are rounded away, unless the
    optimizer is `adam_bf16`. A frozen model has no such copy."""

    moe_use_grouped_mm: bool = key(True)
    """Compute all experts of a mixture-of-experts layer in one grouped matrix product instead of one by one."""

    compile: CompileConfig | None = optional_section(CompileConfig)
    """Compile each layer with torch.compile. Null: do not. Where nothing sets it, layers are compiled on a GPU, with
    `required=false`, if the model has 50 million parameters or more, and not on a CPU."""

    activation_checkpointing: ActivationCheckpointingConfig | None = optional_section(ActivationCheckpointingConfig)
    """Which layers recompute their activations, with `gradient_checkpointing`. Null: all."""

    activation_offloading: ActivationOffloadingConfig | None = optional_section(ActivationOffloadingConfig)
    """Move activations to host memory until the backward pass needs them. Null: do not."""

    debug: ModelDebugConfig | None = optional_section(ModelDebugConfig)
    """Make the model smaller for debugging. Null: the whole model."""

    lora_dropout: float = key(0.0, ge=0, le=1, rules=(ONLY_LORA,))
    """Dropout on the input of the adapters."""

    lora_modules_to_save: list[str] = key([], rules=(ONLY_LORA,))
    """Modules that are trained in full beside the adapters and saved with them, by the last parts of their names. The
    head of a value model always is one."""

    dist_timeout_s: int = key(600, gt=0)
    """Timeout of a collective operation between trainer ranks, in seconds; past it the run fails. Writing a checkpoint
    may take 10 times as long."""
