"""Name stores of every kind, and other processes that use them."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from areal_like.discovery import MemoryEntries, etcd_name_store, file_name_store, memory_name_store
from areal_like.discovery.owner import this_process
from tests.support.etcd_server import etcd_servers, section_of

PREFIX = "me/grpo/r0001"
TTL_S = 0.15
WORKER = """
import json, sys, time
from pathlib import Path
from areal_like.config.sections.cluster import NameResolveConfig
from areal_like.discovery import NameTaken, etcd_name_store, file_name_store
prefix, owner, root, ttl_s, section = json.loads(sys.argv[1])
if section:
    names = etcd_name_store(NameResolveConfig(**section), Path(), prefix, owner)
else:
    names = file_name_store(root, prefix, owner, ttl_s)
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    name, moment = json.loads(line)
    while time.monotonic() < moment:
        pass
    try:
        names.add(name, owner)
        print(json.dumps("won"), flush=True)
    except NameTaken as taken:
        print(json.dumps(str(taken)), flush=True)
"""


class Worker:
    """Another process that adds names on request."""

    def __init__(self, arguments):
        command = [sys.executable, "-c", WORKER, json.dumps(arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin and self.process.stdout
        self.tell, self.output = self.process.stdin, self.process.stdout

    def add(self, name, moment=0.0):
        self.tell.write(json.dumps([name, moment]) + "\n")
        self.tell.flush()

    def answer(self):
        return json.loads(self.output.readline())

    def send(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        """It stays a zombie."""
        self.send(signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.tell.close()
        self.output.close()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    """One real etcd, whose data all tests share: each uses keys of its own."""
    with etcd_servers(tmp_path_factory.mktemp("etcd")) as members:
        yield members


@pytest.fixture(params=["nfs", "etcd3", "memory"])
def kind(request):
    return request.param


class Stores:
    """Opens the name stores of one run, for any of its processes."""

    def __init__(self, kind, root, members):
        self.kind, self.root, self.opened, self.memory, self.workers = kind, root, [], MemoryEntries(), []
        self.members = members
        self.run = f"{root.name}-{time.monotonic_ns()}"

    def __call__(self, owner="trainer/0", prefix=PREFIX, ttl_s=TTL_S):
        if self.kind == "nfs":
            names = file_name_store(self.root / "names", prefix, owner, ttl_s)
        elif self.kind == "etcd3":
            section = section_of(self.members, ttl_s=ttl_s)
            names = etcd_name_store(section, self.root, f"{self.run}/{prefix}".rstrip("/"), owner)
        else:
            names = memory_name_store(prefix, owner, self.memory)
        self.opened.append(names)
        return names

    def elsewhere(self, monkeypatch, owner="trainer/0", **options):
        """The same for a process on another host."""
        module = {"nfs": "files", "etcd3": "etcd"}[self.kind]
        with monkeypatch.context() as patched:
            far = this_process()._replace(host="other", boot="another-boot")
            patched.setattr(f"areal_like.discovery.{module}.this_process", lambda: far)
            return self(owner, **options)

    def start(self, *owners, ttl_s=30.0):
        """Other processes that wait for names to add."""
        section = self.members and dataclasses.asdict(section_of(self.members, ttl_s=ttl_s))
        prefix = f"{self.run}/{PREFIX}" if section else PREFIX
        new = [Worker([prefix, owner, str(self.root / "names"), ttl_s, section]) for owner in owners]
        self.workers += new
        assert [worker.answer() for worker in new] == ["ready"] * len(new)
        return new

    def close(self):
        for names in self.opened:
            names.close()
        for worker in self.workers:
            worker.end()


@pytest.fixture
def opened(kind, tmp_path, request):
    """Opens the names of one more process of a run; closes them all at the end."""
    stores = Stores(kind, tmp_path, request.getfixturevalue("etcd") if kind == "etcd3" else None)
    yield stores
    stores.close()


@pytest.fixture
def workers(opened):
    return opened.start
