"""Section `weights`: format of saved weights, direct transfer to the servers."""

from areal_like.config.fields import config, key, section


@config
class WeightBroadcastConfig:
    """Direct transfer of weights from trainers to servers (`actor.weight_update_mode: collective`)."""

    host: str = key("127.0.0.1")
    """Address that trainer rank 0 listens on. On several nodes the servers must be able to reach it."""

    port: int = key(0, ge=0, le=65535)
    """Port that trainer rank 0 listens on. 0: a free port."""

    timeout_s: int = key(1200, gt=0)
    """Timeout with which trainers and servers wait for each other, in seconds; past it the transfer fails."""


@config
class WeightsConfig:
    """How weights are saved, and sent to the inference servers."""

    save_format: str = key("safetensors", choices=("safetensors", "torch"))
    """File format of saved weights. `torch` writes `pytorch_model.bin`, for tools that read nothing else; `torch.load`
    reads it with `weights_only=True`."""

    save_sharded: bool = key(False)
    """Split saved weights larger than `max_shard_gb` into several files with an index."""

    max_shard_gb: float = key(5.0, gt=0)
    """Maximum size of one file in gigabytes, with `save_sharded`. A larger tensor gets a separate file."""

    save_async: bool = key(True)
    """Write to disk while training continues. Costs host memory for a second copy of the weights."""

    save_adapter_separately: bool = key(False)
    """With LoRA: also write the adapter, in PEFT's format, beside the merged weights."""

    broadcast: WeightBroadcastConfig = section(WeightBroadcastConfig)
    """Direct transfer from trainers to servers, with `actor.weight_update_mode: collective`."""
