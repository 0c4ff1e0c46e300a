"""The machines of a run."""

from areal_like.config.fields import Auto, config, key, section
from areal_like.config.sections.name_resolve import NameResolveConfig


@config
class ClusterSpecConfig:
    """Which machines a run may use, and where it puts what it writes."""

    name_resolve: NameResolveConfig = section(NameResolveConfig)
    """How processes find each other."""

    cluster_name: str = key("local")
    """Name of the machines, for people: the plan shows it, and nothing else depends on it."""

    fileroot: str = key("./runs")
    """Folder above all run directories. On several nodes all of them must see the same one."""

    n_nodes: int = key(1, ge=1, le=1024)
    """Number of nodes."""

    n_gpus_per_node: int | Auto = key("auto", ge=0, le=64)
    """GPUs of each node that the run may use. `auto` takes what is there, also none."""

    allow_oversubscription: bool = key(False)
    """Start a run without GPUs also where its processes want more cores or memory than this machine has. The plan
    says what they want: a core for each worker of vLLM or SGLang, half of one for each server or trainer rank of
    ours, and the memory of programs, weights and optimizer."""

    type: str = key("local", choices=("local", "slurm", "ray"))
    """What starts the processes: this machine itself, Slurm, or a Ray cluster."""
