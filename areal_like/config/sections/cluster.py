"""Sections `cluster`, `launcher` and `scheduler`: machines, name store, environment variables, Slurm and Ray."""

from typing import Any

from areal_like.config.fields import Auto, config, key, no_effect, not_built, refused, section

ONLY_ETCD = no_effect(unless="type", unless_is=("etcd3",))


@config
class NameResolveConfig:
    """The name store, in which each process of a run registers its address."""

    type: str = key(
        "nfs",
        choices=("nfs", "etcd3", "ray", "memory"),
        rules=(not_built("{}", "use nfs or etcd3", allowed=("etcd3", "memory")),),
    )
    """`nfs` uses plain files, `etcd3` and `ray` use those services, `memory` works within one process, for tests."""

    nfs_record_root: str = key("${cluster.fileroot}/.names")
    """Folder of the files. It must be shared by all nodes."""

    etcd3_addr: str = key(
        "localhost:2379",
        pattern=r"\s*(https?://)?[^\s,;/@]+:\d+\s*(,\s*(https?://)?[^\s,;/@]+:\d+\s*)*",
        pattern_hint="host:port, and further members after commas",
        rules=(ONLY_ETCD,),
    )
    """Addresses of the members of the etcd cluster, as host:port, separated by commas. A call that one member does not
    answer goes to the next."""

    etcd3_user: str | None = key(None, rules=(ONLY_ETCD,))
    """User of an etcd that requires one. It must be able to read and write keys that begin with `areal-like/NAME/`,
    NAME being the user who starts the run."""

    etcd3_password: str | None = key(None, secret=True)
    """Password of that user. Better left null, with ETCDCTL_PASSWORD in the environment or in `launcher.env_file`."""

    etcd3_ca_cert: str | None = key(None, rules=(ONLY_ETCD,))
    """File with the certificates (PEM) by which an etcd that uses TLS is recognised; it also turns TLS on. Null: those
    of the system, where an address begins with https://."""

    etcd3_client_cert: str | None = key(None, rules=(ONLY_ETCD,))
    """File with the certificate (PEM) that the run's processes show to an etcd which requires one. Needs TLS, and
    `etcd3_client_key`."""

    etcd3_client_key: str | None = key(None, rules=(ONLY_ETCD,))
    """File with the private key (PEM) of `etcd3_client_cert`."""

    etcd3_timeout_s: float = key(3.0, gt=0, rules=(ONLY_ETCD,))
    """Limit of each call to etcd in seconds, all its members together. A start is refused after that; a run goes on
    with the addresses that it knows, and calls again."""

    ray_actor_name: str = key("ray_kv_store")
    """Name of the Ray actor that holds the entries."""

    ttl_s: float = key(30.0, gt=0)
    """Time to live of an entry that its process no longer renews, in seconds; etcd rounds it up, at least to 2. A
    process that ended on the same machine is known to have ended at once."""


@config
class ClusterSpecConfig:
    """Which machines a run may use, and where it writes files."""

    name_resolve: NameResolveConfig = section(NameResolveConfig)
    """How processes find each other."""

    cluster_name: str = key("local", rules=(no_effect("it is only shown in the plan"),))
    """Name of the cluster."""

    fileroot: str = key("./runs")
    """Root folder of all run directories. It must be shared by all nodes."""

    n_nodes: int = key(1, ge=1, le=1024)
    """Number of nodes."""

    n_gpus_per_node: int | Auto = key("auto", ge=0, le=64)
    """GPUs of each node that the run may use. `auto`: all of them, or none if there is none."""

    allow_oversubscription: bool = key(False)
    """Start a run without GPUs even if its processes need more cores or memory than this machine has. The plan shows
    what they need: a core for each worker of vLLM or SGLang, half a core for each embedded server or trainer rank, and
    the memory of programs, weights and optimizer."""

    type: str = key(
        "local",
        choices=("local", "slurm", "ray"),
        rules=(not_built("starting processes by {}", "use local (this machine)"),),
    )
    """Where processes are started: on this machine, by Slurm, or in a Ray cluster."""


@config
class SlurmLauncherConfig:
    """How jobs are submitted to Slurm. Used only with `cluster.type: slurm`."""

    srun_additional_args: str = key("--mpi=pmi2 -K --chdir $PWD")
    """Further arguments of every srun, in one line."""

    container_type: str = key("apptainer", choices=("apptainer", "none"))
    """Run the processes inside Apptainer images, or directly on the nodes."""

    mount: str = key("/storage:/storage")
    """Folders mounted in a container, as outside:inside, separated by commas."""

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
    """Time limit of the job in Slurm's format, such as 12:00:00. Null: the partition's default."""


@config
class RayLauncherConfig:
    """How to connect to a Ray cluster. Used only with `cluster.type: ray`."""

    address: str | None = key(None)
    """Address of the cluster; `auto` is the one running on this machine. Null: RAY_ADDRESS, else one is started."""


@config
class LauncherConfig:
    """Environment variables, cores and memory of the processes of a run."""

    inference_server_cpus_per_gpu: int = key(4, ge=1)
    """Cores requested per GPU of an inference server, on Slurm and Ray."""

    inference_server_mem_per_gpu: int = key(32768, ge=1)
    """Main memory requested per GPU of an inference server in MB, on Slurm and Ray."""

    trainer_cpus_per_gpu: int = key(4, ge=1)
    """Cores requested per GPU of the trainer, on Slurm and Ray."""

    trainer_mem_per_gpu: int = key(32768, ge=1)
    """Main memory requested per GPU of the trainer in MB, on Slurm and Ray."""

    inference_server_env_vars: str = key("")
    """Environment variables of inference servers, as `A=1,B=2`. They override `env`. Keep keys and tokens in
    `env_file`."""

    trainer_env_vars: str = key("")
    """Environment variables of trainers, as `A=1,B=2`. They override `env`. Keep keys and tokens in `env_file`."""

    numa_binding: bool = key(True)
    """On a machine with several NUMA nodes, run each process with a GPU on the cores of the node that its GPU is
    attached to, so that copies to host memory do not cross between nodes. Only on the launcher's own machine; Slurm and
    Ray bind processes themselves."""

    slurm: SlurmLauncherConfig = section(SlurmLauncherConfig)
    """How jobs are submitted to Slurm."""

    ray: RayLauncherConfig = section(RayLauncherConfig)
    """How to connect to a Ray cluster."""

    env: dict[str, str | None] = key({})
    """Environment variables of all processes of the run; add one with `+launcher.env.NAME=value`. They are saved with
    the configuration: keep keys and tokens in `env_file`."""

    env_file: list[str] = key([])
    """Files with lines NAME=value, read at the start into the environment of all processes; later files override
    earlier ones. For keys and tokens: values are not saved with the configuration, are removed from errors, metrics and
    what Python code prints, and are covered in logs within seconds where other programs print them."""


NO_SERVICE = refused("no such service exists here; a reward is a function: reward.name, reward.args")


@config
class SchedulerConfig:
    """Services that AReaL can call. This framework has none: AReaL's files load, but a start with a changed key is
    refused."""

    endpoint: str = key(
        "http://localhost:8081",
        rules=(refused("there is no scheduler service; where processes run is cluster.type and allocation_mode"),),
    )
    """URL of a scheduler service. Here `cluster.type` and `allocation_mode` determine where processes run."""

    deploy_mode: str = key("separation", rules=(refused("servers and trainers are placed by allocation_mode"),))
    """Whether inference and training use separate GPUs. Here `allocation_mode` determines it."""

    functioncall_service_domain: str = key("http://localhost:8080", rules=(NO_SERVICE,))
    """URL of a service that runs code for rewards. Here a reward is a function, named by `reward.name`."""

    reward_functioncall_config: dict[str, Any] = key({}, rules=(NO_SERVICE,))
    """Options of each call of that service. Here they are `reward.args`."""

    reward_model_path: str = key("", rules=(refused("reward.name=model serves the reward model in reward.args.path"),))
    """Model with which such a service scores answers. Here a reward function may load one."""

    reward_model_service_url: str = key(
        "http://localhost:30000/classify",
        rules=(
            refused(
                "a reward function may call one: reward.name, reward.args; reward.name=model serves a model beside the "
                "run"
            ),
        ),
    )
    """URL of a service that scores answers. Here a reward function may call one."""
