"""How weights are written to disk and how they travel to the servers."""

from areal_like.config.fields import config, key, section


@config
class WeightBroadcastConfig:
    """Where trainers and servers meet to pass weights on directly (`actor.weight_update_mode: collective`)."""

    host: str = key("127.0.0.1")
    """Address that trainer rank 0 listens on. Must be one that the servers can reach where a run spans nodes."""

    port: int = key(0, ge=0, le=65535)
    """Port that trainer rank 0 listens on; 0 takes a free one, which the servers are told."""

    timeout_s: int = key(1200, gt=0)
    """Seconds that either side waits for the other before it gives up with an error."""


@config
class WeightsConfig:
    """How weights are saved, and passed on to the inference servers."""

    save_format: str = key("safetensors", choices=("safetensors", "torch"))
    """File format of saved weights. `torch` writes `pytorch_model.bin`, for tools that read nothing else: tensors
    alone, so that `torch.load` takes them with `weights_only=True`."""

    save_sharded: bool = key(False)
    """Split saved weights into several files with an index, where they are larger than `max_shard_gb`, instead of one
    file."""

    max_shard_gb: float = key(5.0, gt=0)
    """Most gigabytes in one file, with `save_sharded`. A tensor that is larger by itself has a file of its own."""

    save_async: bool = key(True)
    """Write to disk while training goes on. Costs host memory for a second copy of the weights."""

    save_adapter_separately: bool = key(False)
    """With LoRA: also write the adapter by itself, as PEFT reads it, beside the merged weights."""

    broadcast: WeightBroadcastConfig = section(WeightBroadcastConfig)
    """The meeting point of trainers and servers for `actor.weight_update_mode: collective`."""
