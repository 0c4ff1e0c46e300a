"""Where the processes of a run find each other."""

from areal_like.config.fields import config, key


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
