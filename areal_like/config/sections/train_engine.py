"""One trained (or frozen) model: where it comes from, in which precision, how it is split, what saves memory."""

from areal_like.config.fields import config, key, optional_section, section
from areal_like.config.sections.optimizer import OptimizerConfig


@config
class FSDPWrapPolicy:
    """Which modules of a model become sharding units."""

    transformer_layer_cls_to_wrap: list[str] | None = key(None)
    """Class names of the layers that are sharded one by one. Null: what the model names as not to be split."""


@config
class FSDPEngineConfig:
    """Sharding of parameters, gradients and optimizer state."""

    wrap_policy: FSDPWrapPolicy | None = optional_section(FSDPWrapPolicy)
    """Which layers are sharded one by one. Null: decided by the model."""

    offload_params: bool = key(False)
    """Keep sharded parameters, gradients and optimizer state in host memory, and bring in only the layer at work. For
    models that do not fit otherwise; slow."""

    reshard_after_forward: bool = key(True)
    """Give a layer's gathered parameters back after its forward pass and gather them again for the backward pass.
    False is faster where memory allows."""

    dp_replicate: int = key(1, ge=1)
    """Keep so many full replicas and shard within each (hybrid sharding). Must divide the data-parallel size."""

    load_using_meta: bool = key(False)
    """Build the model without memory and load only each rank's own part. Saves host memory with large models."""


@config
class MicroBatchSpec:
    """How a batch is cut into micro-batches. The gradient is the same however it is cut."""

    n_mbs: int | None = key(1, ge=1)
    """At least so many micro-batches; more where `max_tokens_per_mb` asks for it. Null: as few as fit."""

    granularity: int = key(1, ge=1)
    """So many neighbouring sequences stay together in one micro-batch, and in one update; 2 for pairs. Must divide the
    batch."""

    max_tokens_per_mb: int | None = key(None, ge=1)
    """Most tokens in a micro-batch: the knob against running out of memory. A longer sequence is an error.
    Null: no limit."""


@config
class CompileConfig:
    """torch.compile of each layer."""

    fullgraph: bool = key(False)
    """Fail where a layer cannot be compiled as one graph, instead of splitting it."""


@config
class ActivationCheckpointingConfig:
    """Which layers compute their activations again in the backward pass."""

    freq: int = key(1, ge=1)
    """Every so many layers; 1 is all of them, 2 every other one, which costs memory and saves time."""


@config
class ActivationOffloadingConfig:
    """Activations wait for the backward pass in host memory."""

    pin_memory: bool = key(True)
    """Use page-locked host memory: copies are faster and run beside the computation."""

    max_inflight_activations: int = key(5, ge=1)
    """Activations that may be on their way to the host at once. More hide more of the copying and hold more GPU
    memory."""


@config
class ModelDebugConfig:
    """Smaller models, for trying things out."""

    num_layers: int | None = key(None, ge=1)
    """Keep only the first so many layers. Null: all."""


@config
class TrainEngineConfig:
    """A model as the trainer holds it."""

    experiment_name: str = key("${experiment_name}")
    """Experiment that this belongs to. Follows the experiment's own name; another value is refused."""

    trial_name: str = key("${trial_name}")
    """Trial that this belongs to. Follows the experiment's own trial; another value is refused."""

    path: str = key("")
    """The model: a folder with a Hugging Face checkpoint, its name on the Hub, or `builtin:` and a name."""

    attn_impl: str = key(
        "auto", choices=("auto", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "eager")
    )
    """How attention is computed. `auto` takes the fastest that this machine has for packed sequences; `sdpa` is torch's
    own (on a GPU its flash kernel), `eager` goes step by step, for comparison."""

    init_from_scratch: bool = key(False)
    """Start from random weights: of the folder only the model's configuration and tokenizer are used."""

    is_critic: bool = key(False)
    """Give the model a head with one number per token instead of the vocabulary."""

    mb_spec: MicroBatchSpec = section(MicroBatchSpec)
    """How a rank's batch is cut into micro-batches."""

    pad_to_maximum: bool = key(False)
    """Pad every packed micro-batch to `mb_spec.max_tokens_per_mb`, so that all shapes are alike. Needs that limit."""

    disable_dropout: bool = key(False)
    """Set every dropout probability of the model to 0."""

    gradient_checkpointing: bool = key(True)
    """Compute activations again in the backward pass instead of keeping them: much less memory, about a quarter more
    time. `activation_checkpointing` says for which layers."""

    dtype: str = key("bfloat16", choices=("float32", "bfloat16", "float16"))
    """Precision of forward and backward pass."""

    grad_reduce_dtype: str = key("float32", choices=("float32", "bfloat16", "float16"))
    """Precision in which gradients are added up over ranks."""

    optimizer: OptimizerConfig | None = optional_section(OptimizerConfig)
    """How the model is trained. Null: it is frozen and only computes."""

    weight_update_mode: str = key("disk", choices=("disk", "collective", "adapter", "xccl", "nccl", "filesystem"))
    """How new weights reach the servers: through files, directly, or as a LoRA adapter alone. `xccl` and `nccl` mean
    `collective`, `filesystem` means `disk`. Only the actor publishes weights."""

    backend: str = key("auto")
    """Training engine and how it is split over devices, such as `fsdp:d4` or `fsdp:d2t2`. `auto` (or nothing) decides
    by `allocation_mode` and the machine."""

    fsdp: FSDPEngineConfig = section(FSDPEngineConfig)
    """How FSDP shards the model."""

    use_lora: bool = key(False)
    """Train low-rank adapters and leave the model's own weights as they are."""

    lora_rank: int = key(32, ge=1)
    """Rank of the adapters."""

    lora_alpha: float = key(16.0, ge=0)
    """Strength of the adapters: their output is multiplied by this over the rank."""

    target_modules: list[str] = key([])
    """Linear layers that get an adapter, by the last parts of their names (`q_proj`, `mlp.up_proj`) or by regular
    expressions for all of a name. Empty, or `all-linear`: all of them but the output head."""

    peft_type: str = key("lora", choices=("lora",))
    """Kind of adapter."""

    trust_remote_code: bool = key(False)
    """Run Python code that comes with the model. Only for checkpoints whose authors you trust."""

    model_impl: str = key("hf", choices=("hf", "liger_kernel", "custom"))
    """Which code computes the model: transformers as it is, transformers with Liger's fused kernels, or our own
    implementation where there is one for this kind of model."""

    master_dtype: str = key("float32", choices=("float32", "bfloat16"))
    """Precision of the weights that the optimizer updates. With bfloat16 small updates are rounded away, unless the
    optimizer is `adam_bf16`. A frozen model has no such copy."""

    moe_use_grouped_mm: bool = key(True)
    """Multiply all experts of a mixture-of-experts layer in one grouped matrix product instead of one by one."""

    compile: CompileConfig | None = optional_section(CompileConfig)
    """Compile each layer with torch.compile. Null: do not."""

    activation_checkpointing: ActivationCheckpointingConfig | None = optional_section(ActivationCheckpointingConfig)
    """Which layers compute their activations again, where `gradient_checkpointing` is on. Null: all."""

    activation_offloading: ActivationOffloadingConfig | None = optional_section(ActivationOffloadingConfig)
    """Move activations to host memory until the backward pass needs them. Null: do not."""

    debug: ModelDebugConfig | None = optional_section(ModelDebugConfig)
    """Make the model smaller for trying things out. Null: the whole model."""

    lora_dropout: float = key(0.0, ge=0, le=1)
    """Dropout on what goes into the adapters."""

    lora_modules_to_save: list[str] = key([])
    """Modules that are trained in full beside the adapters and saved with them, by the last parts of their names. The
    head of a value model always is."""

    dist_timeout_s: int = key(600, gt=0)
    """Seconds that a collective operation among trainer ranks may take before the run fails."""
