"""Options for a start on a Ray cluster."""

from areal_like.config.fields import config, key


@config
class RayLauncherConfig:
    """How a Ray cluster is reached. Counts only with `cluster.type: ray`."""

    address: str | None = key(None)
    """Address of the cluster, `auto` for the one running here. Null: what RAY_ADDRESS says, else one is started."""
