"""What the configuration knows of an inference engine, as data: which of its keys mean what, and keys of others."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineKeys:
    """Keys are dotted; "" means that the engine has no such key."""

    name: str
    """Of its section, in `rollout.backend` and in `allocation_mode`."""
    title: str
    """In messages."""
    model_key: str
    """The model to serve. It must be that of the actor."""
    length_key: str
    """Maximum length of prompt and answer together; null is that of the model."""
    dtype_key: str
    """Data type of the weights."""
    memory_key: str = ""
    """Memory that a server takes of its device."""
    cache_tokens_key: str = ""
    """Size of its KV cache in tokens."""
    cache_bytes_key: str = ""
    """Size of its KV cache in bytes."""
    requests_key: str = ""
    """Maximum number of sequences that a server generates at once."""
    kv_dtype_key: str = ""
    """Data type of the KV cache, where it may differ from that of the weights."""
    device_key: str = ""
    """With the value `cpu` the servers use no GPU."""
    threads_key: str = ""
    """CPU threads of an engine inside the server's process; `auto`: the server's share of the cores."""
    images_key: str = ""
    """Enables images in prompts, which are not supported."""
    extension_key: str = ""
    """A class of the user's in place of ours in its workers, which then receive weights into main memory."""
    dims: str = "dtp"
    """Letters of `allocation_mode`; `d` alone: a server is one process on one device."""
    gpu_rank: int | None = None
    """Place among the engines that `auto` looks for on a machine with several GPUs; None: never chosen."""
    segments: tuple[str, ...] = ()
    """Patterns of names in /dev/shm that its processes leave behind when they are killed."""
    newer: Mapping[str, str] = field(default_factory=dict)
    """Keys of newer versions of AReaL -> what to do."""
    prime_rl: Mapping[str, str] = field(default_factory=dict)
    """Keys of prime-rl's inference server -> our key."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Names that other frameworks or engines give to its keys -> our key."""
