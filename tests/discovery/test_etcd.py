"""The name store in a real etcd that restarts, loses its data or its quorum, or wants to know its callers."""

import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError, Problem
from areal_like.discovery import NameMissing, NameTaken
from areal_like.discovery.etcd import EtcdNameStore
from areal_like.discovery.etcd_client import PASSWORD, ROOT, EtcdClient, EtcdUnreachable, _short
from areal_like.discovery.owner import this_process
from areal_like.process.errors import Failure
from areal_like.process.wait import NamedWait
from tests.discovery.conftest import Stores
from tests.discovery.test_names import eventually
from tests.support.commands import REPOSITORY
from tests.support.etcd_server import etcd_servers, name_resolve, require_etcd, require_users, section_of

PREFIX = "me/grpo/r0001"
ADDRESS = "cluster.name_resolve.etcd3_addr"


@pytest.fixture
def kind():
    return "etcd3"


@pytest.fixture
def own(tmp_path):
    """An etcd that a test may kill."""
    with etcd_servers(tmp_path / "own") as (member,):
        yield member


@pytest.fixture
def stores(own, tmp_path):
    opened = Stores("etcd3", tmp_path, [own])
    yield opened
    opened.close()


def store_at(members, tmp_path, **keys):
    return EtcdNameStore(section_of(members, **keys), tmp_path, PREFIX, "launcher/0")


def problem_of(names):
    """The problem by which a start is refused."""
    with names, pytest.raises(ConfigError) as refused:
        names.check()
    (problem,) = refused.value.problems
    return problem


def test_no_name_is_lost_when_etcd_is_killed_and_restarted(own, stores):
    ours, theirs = stores("trainer/0"), stores("server/0")
    theirs.add("server/0", "here")
    assert ours.find() == {"server/0": "here"}
    own.kill()
    assert ours.find() == {"server/0": "here"}, "that etcd is gone says nothing of the server"
    with pytest.raises(NameMissing, match="no etcd answers"):
        ours.get("rollout/0")
    added = threading.Thread(target=stores(ttl_s=60.0).add, args=("trainer/0", "waits for etcd"))
    added.start()
    ours.delete("server/0")  # the launcher says so of a process that ended; it must not fail
    ours.clear()
    own.again()
    added.join()
    eventually(lambda: theirs.find() == {"server/0": "here", "trainer/0": "waits for etcd"})
    assert not ours.lost and not theirs.lost


def test_names_are_entered_again_when_etcd_has_lost_its_data(own, stores):
    ours, theirs = stores("trainer/0"), stores("server/0")
    ours.add("trainer/0", "there")
    theirs.add("server/0", "here")
    own.kill()
    shutil.rmtree(own.folder / "data")
    own.again()
    eventually(lambda: ours.find() == {"server/0": "here", "trainer/0": "there"})
    assert not ours.lost and not theirs.lost


def test_a_wait_goes_on_while_etcd_restarts(own, stores):
    ours, theirs = stores(), stores(ttl_s=60.0)
    own.kill()
    found = []
    waiting = threading.Thread(target=lambda: found.append(ours.wait("server/0", NamedWait("it", 60, "key"))))
    waiting.start()
    own.again()
    theirs.add("server/0", "here")
    waiting.join()
    assert found == ["here"]


def test_a_process_stopped_for_longer_than_its_lease_enters_its_name_again(opened, workers):
    names, (worker,) = opened(), workers("server/0", ttl_s=0.5)
    worker.add("server/0")
    assert worker.answer() == "won"
    worker.send(signal.SIGSTOP)
    eventually(lambda: names.find() == {})
    worker.send(signal.SIGCONT)
    eventually(lambda: names.find() == {"server/0": "server/0"})


def test_a_process_whose_name_was_taken_over_meanwhile_does_not_take_it_back(opened, workers):
    names, (worker,) = opened(), workers("server/0", ttl_s=0.5)
    for name in ("a", "b", "c"):
        worker.add(name)
        assert worker.answer() == "won"
    worker.send(signal.SIGSTOP)
    eventually(lambda: names.find() == {})
    for name in ("a", "c"):
        names.add(name, "mine")
    names.delete("c")  # what this process did under the name is over, and the other one must not go on there
    worker.send(signal.SIGCONT)
    eventually(lambda: names.find() == {"a": "mine", "b": "server/0"})
    assert not names.lost
    worker.add("a")
    assert "held by process" in worker.answer()
    worker.add("d")
    assert worker.answer() == "won" and "c" not in names.find()


def test_an_entry_that_was_written_by_something_else_is_no_address(opened):
    names = opened()
    names.add("a", "1")
    rpc = names._client.rpc
    names._client.call("KV", "Put", rpc.PutRequest(key=names._key("b"), value=b"10.0.0.1:80"))
    assert names.find() == {"a": "1"}
    with pytest.raises(NameMissing, match="its value cannot be read"):
        names.get("b")
    with pytest.raises(NameTaken, match="an entry that cannot be read"):
        names.add("b", "2")
    names.delete("b")
    names.add("b", "2")


def test_a_late_removal_keeps_the_entry_that_took_its_place(opened):
    names, other = opened(), opened()
    other.add("a", "old")
    seen = names._read(names._key("a"))
    other.delete("a")
    other.add("a", "new")
    names._remove(seen)
    assert names.find() == {"a": "new"} and not other.lost


def test_a_call_refused_by_etcd_ends_with_its_reason(opened):
    names = opened()
    with pytest.raises(Failure, match=rf"^{ADDRESS}: etcd at .* refuses a call: "):
        names.add("a", "x" * (2 << 20))


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN", "ABORTED"])
def test_an_etcd_that_is_overloaded_counts_as_one_that_does_not_answer(tmp_path, monkeypatch, code):
    with EtcdNameStore(section_of_address("127.0.0.1:1"), tmp_path, PREFIX, "launcher/0") as names:
        client: Any = names._client
        calls: list[Any] = []
        error: type[Exception] = client._grpc.RpcError

        class Overloaded(error):  # type: ignore[misc, valid-type]
            def code(self):
                return getattr(client._grpc.StatusCode, code)

            def details(self):
                return "etcdserver: too many requests"

        def ask(*call):
            calls.append(call)
            raise Overloaded

        monkeypatch.setattr(client, "_ask", ask)
        with pytest.raises(EtcdUnreachable, match=r"at 127.0.0.1:1 \(it refuses calls: too many requests\)"):
            names.holder("launcher/0")
        assert names.find() == {} and calls, "what is known stays known"
        names.delete("server/0")


# --- several members


def test_another_member_is_asked_until_the_quorum_is_lost(tmp_path):
    with etcd_servers(tmp_path, 3) as members:
        # the last address has never a member
        section = section_of(members, ttl_s=1.0)
        section = dataclasses.replace(section, etcd3_addr=f"{section.etcd3_addr}, localhost:1")
        with EtcdNameStore(section, tmp_path, PREFIX, "launcher/0") as names:
            eventually(lambda: not names.find() and not names._client._down)
            names.add("launcher/0", "here")
            members[0].kill()
            assert names.get("launcher/0") == "here"
            names.add("launcher/0", "moved", replace=True)
            members[1].kill()
            lost = f"etcd at {members[2].address} has lost its quorum: it has no leader"
            # before it has noticed that the others are gone, it does not answer
            eventually(lambda: lost in problem_of(EtcdNameStore(section, tmp_path, PREFIX, "")).message)
            message = problem_of(EtcdNameStore(section, tmp_path, PREFIX, "")).message
            assert f"there is no answer from {members[0].address} (Connection refused), " in message
            assert message.endswith("start members until more than half of them run")
            assert names.find() == {"launcher/0": "moved"}
            members[1].again()
            eventually(lambda: names.find() == {"launcher/0": "moved"} and not names._client._down)
            assert not names.lost


def test_a_lease_is_renewed_by_another_member_when_the_first_is_gone(etcd, tmp_path):
    section = dataclasses.replace(section_of(etcd), etcd3_addr=f"localhost:1,{etcd[0].address}")
    with EtcdNameStore(section, tmp_path, f"{PREFIX}-{tmp_path.name}", "server/0") as names:
        names.add("server/0", "here")
        names._client._members.reverse()
        assert names._client._members[0] == "localhost:1" and names._is_renewed()


def test_names_are_entered_again_when_etcd_goes_away_meanwhile(opened, monkeypatch):
    names, other = opened(ttl_s=60.0), opened()
    for name in ("a", "b"):
        names.add(name, name)
    revoked = names._client.rpc.LeaseRevokeRequest(ID=names._lease)
    names._client.call("Lease", "LeaseRevoke", revoked)
    assert other.find() == {}
    put, tries = names._put, []

    def fails_once(own, revision):
        tries.append(own)
        if len(tries) == 2:
            raise EtcdUnreachable("gone")
        return put(own, revision)

    monkeypatch.setattr(names, "_put", fails_once)
    with pytest.raises(EtcdUnreachable):
        names._renew()
    assert other.find() == {"a": "a"}
    names._renew()
    assert other.find() == {"a": "a", "b": "b"} and not names.lost


# --- refused starts


def test_an_etcd_that_does_not_run_is_named_with_the_remedy(tmp_path):
    section = dataclasses.replace(section_of_address("127.0.0.1:1,localhost:2"))
    problem = problem_of(EtcdNameStore(section, tmp_path, PREFIX, ""))
    assert problem.key == ADDRESS
    assert problem.message == (
        "no etcd answers at 127.0.0.1:1 (Connection refused), localhost:2 (Connection refused); start it, or correct "
        "the address"
    )


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
            "Connection refused",
        ),
        ("DNS resolution failed for x:2379: [C-ares status is not ok: Domain name not found]", "Domain name not found"),
        ("etcdserver: no leader", "no leader"),
    ],
)
def test_a_fault_of_grpc_is_shown_without_its_layers(details, shown):
    assert _short(details) == shown


@pytest.mark.shows("cluster.name_resolve.etcd3_timeout_s")
def test_an_address_that_never_answers_is_given_up_after_the_limit(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        section = section_of_address(f"127.0.0.1:{silent.getsockname()[1]}", etcd3_timeout_s=0.25)
        assert "(no answer within 0.25 s)" in problem_of(EtcdNameStore(section, tmp_path, PREFIX, "")).message
        with EtcdNameStore(section, tmp_path, PREFIX, "") as names, pytest.raises(EtcdUnreachable, match=ADDRESS):
            names.holder("launcher/0")


def test_all_members_together_have_the_limit_of_one_call(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
        section = section_of_address(",".join(addresses), etcd3_timeout_s=0.5)
        message = problem_of(EtcdNameStore(section, tmp_path, PREFIX, "")).message
    assert f"{addresses[0]} (no answer within 0.25 s)" in message


def test_a_server_that_is_no_etcd_is_named(tmp_path):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        serving = threading.Thread(target=other.serve_forever, args=(0.01,))
        serving.start()
        section = section_of_address(f"127.0.0.1:{other.server_port}", etcd3_timeout_s=20.0)
        problem = problem_of(EtcdNameStore(section, tmp_path, PREFIX, ""))
        other.shutdown()
        serving.join()
    assert problem.message.startswith(f"no etcd answers at 127.0.0.1:{other.server_port} (")


def section_of_address(address, **keys):
    return name_resolve(**{"type": "etcd3", "etcd3_addr": address, **keys})


# --- user and password


@pytest.fixture
def guarded(own):
    """An etcd that requires a user; jane may use the names of runs, and john nothing."""
    require_users(own, jane=["names"], john=[])
    return own


@pytest.mark.shows("cluster.name_resolve.etcd3_user", "cluster.name_resolve.etcd3_password")
def test_names_are_used_with_user_and_password_also_after_a_restart(guarded, tmp_path, monkeypatch):
    with store_at([guarded], tmp_path, ttl_s=0.3, etcd3_user="jane", etcd3_password="jane-secret") as ours:
        monkeypatch.setenv(PASSWORD, "jane-secret")
        with store_at([guarded], tmp_path, etcd3_user="jane") as theirs:
            ours.add("server/0", "here")
            assert theirs.wait("server/0", NamedWait("it", 60, "key")) == "here"
            guarded.kill()
            guarded.again()
            eventually(lambda: theirs.find() == {"server/0": "here"} and not theirs._client._down)
            assert not ours.lost


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "etcd requires a user (user name is empty)"),
        ({"etcd3_user": "jane", "etcd3_password": "hunter2"}, "etcd does not accept the user jane with this password"),
        (
            {"etcd3_user": "john", "etcd3_password": "john-secret"},
            "john may not read and write the keys of this run",
        ),
    ],
)
def test_a_user_whom_etcd_refuses_is_told_why(guarded, tmp_path, keys, words):
    problem = problem_of(store_at([guarded], tmp_path, **keys))
    assert problem.key == "cluster.name_resolve.etcd3_user"
    assert problem.message.startswith(words) and "hunter2" not in problem.message


def test_a_login_that_etcd_does_not_accept_any_more_is_repeated(guarded, tmp_path, monkeypatch):
    monkeypatch.delenv(PASSWORD, raising=False)
    jane = store_at([guarded], tmp_path, etcd3_user="jane", etcd3_password="jane-secret")
    root = store_at([guarded], tmp_path, etcd3_user="root", etcd3_password="root-secret")
    with jane as names, root as admin:
        names.add("server/0", "here")
        added = admin._client.rpc.AuthUserAddRequest(name="joan", password="joan-secret")
        admin._client.call("Auth", "UserAdd", added)
        assert names.get("server/0") == "here"
        names._client._token = "forgotten.1"
        names.add("server/0", "moved", replace=True)
        assert names.get("server/0") == "moved"


def test_a_user_is_refused_by_an_etcd_without_users(own, tmp_path):
    problem = problem_of(store_at([own], tmp_path, etcd3_user="jane", etcd3_password="x"))
    assert problem == Problem("cluster.name_resolve.etcd3_user", "etcd knows no users; set it to null")


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """ca, server and client (.pem and .key), made by openssl."""
    if shutil.which("openssl") is None:
        assert os.environ.get("CI") != "true", "openssl is needed to make certificates"
        pytest.skip("openssl is not installed, and makes the certificates of this test")
    folder = tmp_path_factory.mktemp("certificates")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3")
    openssl(folder, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl(folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(folder, *signed, "-days", "3", "-extfile", "names", "-out", f"{name}.pem")
    return folder


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.shows(
    "cluster.name_resolve.etcd3_ca_cert",
    "cluster.name_resolve.etcd3_client_cert",
    "cluster.name_resolve.etcd3_client_key",
)
def test_names_are_used_over_tls_with_certificates_of_both_sides(certificates, tmp_path):
    flags = [f"--cert-file={certificates / 'server.pem'}", f"--key-file={certificates / 'server.key'}"]
    flags += [f"--trusted-ca-file={certificates / 'ca.pem'}", "--client-cert-auth"]
    own = {"etcd3_client_cert": "client.pem", "etcd3_client_key": "client.key"}
    with etcd_servers(tmp_path, 1, *flags, scheme="https") as members:
        with EtcdNameStore(section_of(members, etcd3_ca_cert="ca.pem", **own), certificates, PREFIX, "") as names:
            names.check()
            names.add("server/0", "here")
            assert names.get("server/0") == "here"
        for keys in ({"etcd3_ca_cert": "ca.pem"}, own):  # no certificate of ours, no reason to trust theirs
            problem = problem_of(EtcdNameStore(section_of(members, **keys), certificates, PREFIX, ""))
            assert problem.key == ADDRESS and "no etcd answers at https://127.0.0.1" in problem.message
        with pytest.raises(ConfigError, match=r"etcd3_ca_cert.*no.pem cannot be read: No such file"):
            EtcdNameStore(section_of(members, etcd3_ca_cert="no.pem"), certificates, PREFIX, "")


OURS = this_process()._asdict()
ENTRY = {"id": "1", "value": "there", "process": "server/0", "since": "today", "owner": OURS}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ["a"]},
        {"value": 5},
        {"process": "server/0\x1b[2J\nall is well"},
        {"owner": {**OURS, "pid": "1\0"}},
        {"owner": {**OURS, "pid": "1" * 5000}},
        {"owner": {**OURS, "pid": "cpuinfo"}},
        {"owner": {**OURS, "host": ["a"]}},
        {"owner": {"\x1b[2J": 1}},
    ],
    ids=["id", "value", "escapes", "null byte", "long pid", "no pid", "host", "unknown"],
)
def test_an_entry_that_another_program_wrote_is_no_entry_and_no_fault(etcd, tmp_path, wrong):
    prefix = f"{tmp_path.name}-{time.monotonic_ns()}"
    with EtcdNameStore(section_of(etcd), tmp_path, prefix, "") as names:
        for key, value in (("server/0", {**ENTRY, **wrong}), (f"server/{'1' * 5000}", ENTRY)):
            put = names._rpc.PutRequest(key=f"{ROOT}/{prefix}/{key}".encode(), value=orjson.dumps(value))
            names._client.call("KV", "Put", put)
        assert list(names.find()) == [f"server/{'1' * 5000}"]
        with pytest.raises(NameMissing, match="its value cannot be read"):
            names.get("server/0")
        assert str(names.holder("server/0")).isprintable()
        names.clear()
        assert names.find() == {}


def test_a_stream_that_ends_without_an_answer_is_a_fault_of_etcd(tmp_path):
    """The thread that renews a lease goes on after such faults, and after no others."""
    require_etcd()
    grpc = import_module("grpc")
    silent = grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(()))
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([SimpleNamespace(service=lambda details: silent)])
    port = server.add_insecure_port("127.0.0.1:0")
    member: Any = SimpleNamespace(scheme="http", address=f"127.0.0.1:{port}")
    server.start()
    client = EtcdClient(section_of([member], etcd3_timeout_s=30.0), tmp_path)
    try:
        with pytest.raises(EtcdUnreachable, match="without an answer"):
            client.call("Lease", "LeaseKeepAlive", client.rpc.LeaseKeepAliveRequest(ID=1))
    finally:
        client.close()
        server.stop(None).wait()


def test_make_etcd_prints_the_command_of_a_run_that_uses_it(tmp_path):
    require_etcd()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.support.etcd_server", str(tmp_path / "data"), address]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        words = shlex.split(running.stdout.readline())
        config = load("grpo.yaml", words[words.index("grpo.yaml") + 1 :]).config
        with EtcdNameStore(config.cluster.name_resolve, tmp_path, PREFIX, "launcher/0") as names:
            names._ttl_s = 60.0  # it is still starting
            names.add("launcher/0", "here")
            assert names.get("launcher/0") == "here"
        running.send_signal(signal.SIGINT)
        assert "Traceback" not in running.communicate()[1]
