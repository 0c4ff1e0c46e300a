"""Section `embedded`: the inference engine of this framework."""

from areal_like.config.fields import Auto, config, key


@config
class EmbeddedConfig:
    """The inference engine of this framework: part of the package, runs on a CPU or one GPU."""

    model_path: str = key("")
    """Model to serve: a folder, a name on the Hub, or `builtin:` and a name. Follows `actor.path`; another value is
    refused."""

    dtype: str = key("auto", choices=("auto", "float32", "bfloat16", "float16"))
    """Data type of weights and activations; `auto` takes that of the checkpoint. Follows `actor.dtype`."""

    device: str = key("auto", choices=("auto", "cpu", "cuda"))
    """Where the model runs; `auto` takes a GPU if one is assigned to the server."""

    max_running_requests: int = key(256, ge=1)
    """Maximum number of sequences generated in one batch; further ones wait."""

    context_length: int | None = key(None, ge=1)
    """Maximum number of tokens of a sequence, prompt included. Null: the maximum of the model."""

    kv_cache_tokens: int | Auto = key("auto", ge=1)
    """Capacity of the KV cache in tokens, over all sequences. `auto` derives it from the memory. A GPU also holds the
    weights twice, those in use and the next version, and the temporaries of a step; the cache takes its memory when the
    server starts."""

    enforce_eager: bool | Auto = key("auto")
    """Compute decode steps operator by operator, as a CPU always does. On a GPU they are otherwise captured as CUDA
    graphs, for each size of a batch when it is used again, and replayed: faster, for some memory beside the KV cache.
    Prompts, batches with an adapter, and sampling are not captured. `auto` is false on a GPU and true on a CPU."""

    threads: int | Auto = key("auto", ge=1)
    """CPU threads for computation. `auto` is the server's share of the cores."""

    seed: int = key("${seed}")
    """Seed of requests without one. Follows the experiment's `seed`."""
