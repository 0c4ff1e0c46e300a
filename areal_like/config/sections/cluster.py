"""The machines of a run."""

from typing import Any

from areal_like.config.fields import Auto, config, key, section


@config
class NameResolveConfig:
    """The store in which each process of a run enters its address."""

    type: str = key("nfs", choices=("nfs", "etcd3", "ray", "memory"))
    """`nfs` is plain files, `etcd3` and `ray` ask those services, `memory` serves one process, for tests."""

    nfs_record_root: str = key("${cluster.fileroot}/.names")
    """Folder of the files. On several nodes all of them must see the same one."""

    etcd3_addr: str = key("localhost:2379")
    """Address of the etcd server, as host:port."""

    ray_actor_name: str = key("ray_kv_store")
    """Name of the Ray actor that holds the entries."""

    ttl_s: float = key(30.0, gt=0)
    """Seconds after which an entry that its process no longer renews is void."""


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


@config
class RayLauncherConfig:
    """How a Ray cluster is reached. Counts only with `cluster.type: ray`."""

    address: str | None = key(None)
    """Address of the cluster, `auto` for the one running here. Null: what RAY_ADDRESS says, else one is started."""


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


@config
class SchedulerConfig:
    """Services that AReaL can call. There are none here: its files load, but a start with one of these keys changed is
    refused."""

    endpoint: str = key("http://localhost:8081")
    """URL of a scheduler service. Here `cluster.type` and `allocation_mode` say where processes run."""

    deploy_mode: str = key("separation")
    """Whether inference and training have GPUs of their own. Here `allocation_mode` says so."""

    functioncall_service_domain: str = key("http://localhost:8080")
    """URL of a service that runs code for rewards. Here a reward is a function, named by `reward.name`."""

    reward_functioncall_config: dict[str, Any] = key({})
    """Options sent along with each call of that service. Here they are `reward.args`."""

    reward_model_path: str = key("")
    """Model that such a service scores answers with. Here a reward function may load one."""

    reward_model_service_url: str = key("http://localhost:30000/classify")
    """URL of a service that scores answers. Here a reward function may call one."""
