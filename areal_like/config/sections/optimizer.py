"""Section `optimizer`: optimizer, learning rate schedule, gradient clipping, loss scaling."""

from areal_like.config.fields import config, key


@config
class OptimizerConfig:
    """Optimizer, learning rate schedule and gradient clipping of one model."""

    type: str = key("adam", choices=("adam", "sgd", "adam_bf16", "muon"))
    """`adam` is AdamW; `adam_bf16` holds its moments in bfloat16 to save memory, with dithered rounding so that small
    changes are not lost; `muon` orthogonalizes the updates of weight matrices and leaves embeddings, output head and
    vectors to AdamW."""

    lr: float = key(2e-5, ge=0)
    """Peak learning rate of the schedule."""

    weight_decay: float = key(0.05, ge=0)
    """Decoupled weight decay: each step shrinks the weights by the learning rate times this."""

    beta1: float = key(0.9, ge=0, lt=1)
    """Decay of the running mean of gradients in AdamW."""

    beta2: float = key(0.95, ge=0, lt=1)
    """Decay of the running mean of squared gradients in AdamW."""

    eps: float = key(1e-5, gt=0)
    """Added to the denominator of AdamW's update."""

    min_lr_ratio: float = key(0.0, ge=0, le=1)
    """Minimum learning rate of the schedule, as a fraction of `lr`."""

    lr_scheduler_type: str = key("constant", choices=("linear", "cosine", "constant", "warmup_stable_decay"))
    """Schedule of the learning rate after warm-up. `warmup_stable_decay` is constant and decays only over the last
    `decay_steps`; `linear` and `cosine` decay until the last step."""

    warmup_steps_proportion: float = key(0.001, ge=0, le=1)
    """Fraction of all steps over which the learning rate rises to `lr`. `warmup_steps` takes precedence."""

    offload: bool = key(False)
    """Keep the optimizer's state in host memory. Saves GPU memory and costs a copy per step."""

    initial_loss_scale: float = key(4294967296.0, gt=0)
    """Initial loss scale. Loss scaling is for `float16` only (`dtype`, `grad_reduce_dtype`): losses are multiplied by
    it, so that small gradients are not rounded to 0, and gradients are divided by it."""

    min_loss_scale: float = key(1.0, gt=0)
    """Minimum loss scale. For `float16` only."""

    loss_scale_window: float = key(5.0, gt=0)
    """Consecutive steps with finite gradients after which the loss scale is doubled. For `float16` only."""

    hysteresis: int = key(2, ge=1)
    """The loss scale is halved at this many-th step with non-finite gradients and at each further one; the count
    restarts when it is doubled. For `float16` only."""

    gradient_clipping: float = key(1.0, ge=0)
    """Maximum norm of the whole gradient; a larger one is scaled down to it. 0: no clipping."""

    nesterov: bool = key(True)
    """Nesterov momentum in `sgd` and `muon`. Has no effect if `momentum` is 0."""

    momentum: float = key(0.9, ge=0, lt=1)
    """Momentum of `sgd` and `muon`; 0 makes `sgd` plain gradient descent."""

    warmup_steps: int | None = key(None, ge=0)
    """Steps over which the learning rate rises to `lr`. Null: `warmup_steps_proportion` of all steps."""

    decay_steps: int | None = key(None, ge=0)
    """Last steps over which `warmup_stable_decay` lowers the learning rate. Null: `decay_steps_proportion` of all
    steps."""

    decay_steps_proportion: float = key(0.1, ge=0, le=1)
    """Fraction of all steps, at the end, over which `warmup_stable_decay` lowers the learning rate. `decay_steps` takes
    precedence."""

    min_lr: float | None = key(None, ge=0)
    """Minimum learning rate of the schedule; takes precedence over `min_lr_ratio`. Null: by the ratio."""

    max_skipped_in_a_row: int = key(5, ge=1)
    """Consecutive updates with a non-finite loss or gradient after which the run fails. Each is skipped and counted,
    except those with which the loss scale of `float16` adjusts itself."""
