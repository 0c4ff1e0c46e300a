"""How a rank's batch is cut so that it fits into memory."""

from areal_like.config.fields import config, key


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
