"""Options for a start by Slurm."""

from areal_like.config.fields import config, key


@config
class SlurmLauncherConfig:
    """How jobs are handed to Slurm. Counts only with `cluster.type: slurm`."""

    srun_additional_args: str = key("--mpi=pmi2 -K --chdir $PWD")
    """Further arguments for every srun, in one line."""

    container_type: str = key("apptainer", choices=("apptainer", "none"))
    """Run the processes inside Apptainer images, or directly on the nodes."""

    mount: str = key("/storage:/storage")
    """Folders that a container sees, as outside:inside, several separated by commas."""

    trainer_image: str | None = key(None)
    """Apptainer image for trainers, controller and episode workers. Needed with `container_type: apptainer`."""

    inference_server_image: str | None = key(None)
    """Apptainer image for inference servers. Needed with `container_type: apptainer`."""

    partition: str | None = key(None)
    """Slurm partition. Null: the cluster's default."""

    account: str | None = key(None)
    """Slurm account that the time is charged to. Null: the user's default."""

    time_limit: str | None = key(
        None,
        pattern=r"^([0-9]+-[0-9]+(:[0-9]+){0,2}|[0-9]+(:[0-9]+){0,2}|UNLIMITED|INFINITE)$",
        pattern_hint="as Slurm writes it: minutes, hours:minutes:seconds or days-hours",
    )
    """Longest time of the job as Slurm writes it, such as 12:00:00. Null: the partition's default."""
