"""How PyTorch's FSDP2 shards a model over the trainer ranks."""

from areal_like.config.fields import config, key, optional_section


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
