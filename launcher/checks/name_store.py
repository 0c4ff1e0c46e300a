"""Checks what `cluster.name_resolve.type=etcd3` needs: its package, certificates, a password. Does not call etcd."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from areal_like.discovery.etcd_client import DISTRIBUTION, PACKAGE, PASSWORD, SECTION
from launcher.plan.host import HostInfo
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

FILES = ("etcd3_ca_cert", "etcd3_client_cert", "etcd3_client_key")


def name_store_problems(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    names = config.cluster.name_resolve
    if names.type != "etcd3":
        return
    if PACKAGE not in here.packages:
        reason = f"etcd3 needs the package {PACKAGE}, which is not installed; {pip_command(DISTRIBUTION)} installs it"
        yield Problem(f"{SECTION}.type", reason)
    if names.etcd3_user and not names.etcd3_password and not run_environment(config, here.directory).get(PASSWORD):
        reason = f"is null, and {PASSWORD} is not set; set one of them to the password of {names.etcd3_user}"
        yield Problem(f"{SECTION}.etcd3_password", reason)
    if bool(names.etcd3_client_cert) != bool(names.etcd3_client_key):
        set_one, other = ("cert", "key") if names.etcd3_client_cert else ("key", "cert")
        reason = f"is set without {SECTION}.etcd3_client_{other}; set both or neither"
        yield Problem(f"{SECTION}.etcd3_client_{set_one}", reason)
    for key in FILES:
        path = getattr(names, key)
        if path and not (here.directory / Path(path).expanduser()).is_file():
            yield Problem(f"{SECTION}.{key}", f"there is no file {path}")
