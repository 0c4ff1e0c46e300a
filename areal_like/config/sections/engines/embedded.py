"""Options of our own small inference server."""

from areal_like.config.fields import Auto, config, key


@config
class EmbeddedConfig:
    """The inference server that comes with the package: no installation, runs on a CPU or one GPU."""

    model_path: str = key("")
    """Model to serve: a folder, a name on the hub, or `builtin:` and a name. It must be the actor's, and follows it."""

    dtype: str = key("auto", choices=("auto", "float32", "bfloat16", "float16"))
    """Type of weights and activations; `auto` takes that of the checkpoint. Follows the actor's where there is one."""

    device: str = key("auto", choices=("auto", "cpu", "cuda"))
    """Where the model runs; `auto` takes a GPU where one is given to it."""

    max_running_requests: int = key(256, ge=1)
    """Most sequences generated in one batch; further ones wait."""

    context_length: int | None = key(None, ge=1)
    """Most tokens of a sequence, prompt included. Null: what the model can."""

    kv_cache_tokens: int | Auto = key("auto", ge=1)
    """Tokens that the cache of keys and values holds, over all sequences. `auto` goes by the memory that is free."""

    threads: int | Auto = key("auto", ge=1)
    """CPU threads for computing. `auto` is the server's share of the cores."""

    seed: int = key("${seed}")
    """Seed for what a request does not seed itself. Follows the experiment's `seed`."""
