"""What each process is given: cores, memory, environment."""

from areal_like.config.fields import config, key, section
from areal_like.config.sections.ray import RayLauncherConfig
from areal_like.config.sections.slurm import SlurmLauncherConfig


@config
class LauncherConfig:
    """What the processes of a run are given when they are started."""

    inference_server_cpus_per_gpu: int = key(4, ge=1)
    """Cores asked for with each GPU of an inference server, on Slurm and Ray."""

    inference_server_mem_per_gpu: int = key(32768, ge=1)
    """Main memory in MB asked for with each GPU of an inference server, on Slurm and Ray."""

    trainer_cpus_per_gpu: int = key(4, ge=1)
    """Cores asked for with each GPU of the trainer, on Slurm and Ray."""

    trainer_mem_per_gpu: int = key(32768, ge=1)
    """Main memory in MB asked for with each GPU of the trainer, on Slurm and Ray."""

    inference_server_env_vars: str = key("")
    """Environment variables for inference servers alone, as `A=1,B=2`. They beat `env`. Keys and tokens belong into
    `env_file`."""

    trainer_env_vars: str = key("")
    """Environment variables for trainers alone, as `A=1,B=2`. They beat `env`. Keys and tokens belong into
    `env_file`."""

    slurm: SlurmLauncherConfig = section(SlurmLauncherConfig)
    """How jobs are handed to Slurm."""

    ray: RayLauncherConfig = section(RayLauncherConfig)
    """How a Ray cluster is reached."""

    env: dict[str, str | None] = key({})
    """Environment variables for all processes of the run; add one with `+launcher.env.NAME=value`. It is written down
    with the configuration: keep keys and tokens in `env_file`."""

    env_file: list[str] = key([])
    """Files with lines NAME=value, read at the start into the environment of all processes; a later file wins. The
    place for keys and tokens: their values are never written anywhere."""
