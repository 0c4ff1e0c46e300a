"""Who holds a name of some run: for commands outside of it. Creates nothing."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from areal_like.config.sections.cluster import NameResolveConfig
from areal_like.discovery.base import Holder
from areal_like.discovery.file_entry import read_name_claim
from areal_like.discovery.owner import OwnerProcess, is_alive, this_process
from areal_like.process.errors import Failure

START_LIMIT_S = 20.0


def read_holder(values: dict[str, Any], cwd: Path, prefix: str, name: str) -> Holder | None:
    """`values`: the section `cluster.name_resolve` as a run recorded it. None where no process holds the name, as far
    as this machine can tell."""
    known = {field.name for field in dataclasses.fields(NameResolveConfig)}
    section = NameResolveConfig(**{key: value for key, value in values.items() if key in known})
    if section.type == "nfs":
        return holder_in_files(cwd / Path(section.nfs_record_root).expanduser(), prefix, name)
    return _unless_dead(_ask_etcd(section, cwd, prefix, name)) if section.type == "etcd3" else None


def holder_in_files(root: Path, prefix: str, name: str) -> Holder | None:
    """The same of a name in files."""
    claim = read_name_claim(root, prefix, name)
    return None if claim is None else _unless_dead(claim.holder)


def _unless_dead(holder: Holder | None) -> Holder | None:
    if holder is None or holder.owner is None:
        return None
    return holder if not holder.owner.is_local(this_process()) or is_alive(holder.owner) is not False else None


def _ask_etcd(section: NameResolveConfig, cwd: Path, prefix: str, name: str) -> Holder | None:
    """In a process of its own: this one may fork a launcher, and gRPC cannot be used on both sides of a fork."""
    request = {"section": dataclasses.asdict(section), "cwd": str(cwd), "prefix": prefix, "name": name}
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "areal_like.discovery.holders"],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=START_LIMIT_S + section.etcd3_timeout_s,
            check=True,
        )
    except subprocess.SubprocessError:
        return None  # a start reports why
    found = json.loads(asked.stdout)
    return found and Holder(OwnerProcess(**found["owner"]), found["process"], found["since"])


def _answer(request: dict[str, Any]) -> int:
    from areal_like.discovery.etcd import EtcdNameStore

    section = NameResolveConfig(**request["section"])
    try:
        with EtcdNameStore(section, Path(request["cwd"]), request["prefix"], "") as names:
            holder = names.holder(request["name"])
    except Failure:
        return 1
    found = holder is not None and holder.owner and {**holder._asdict(), "owner": holder.owner._asdict()}
    print(json.dumps(found or None))
    return 0


if __name__ == "__main__":
    sys.exit(_answer(json.load(sys.stdin)))
