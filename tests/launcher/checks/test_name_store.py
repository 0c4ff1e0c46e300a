"""What a run over etcd needs, and how a start without it is refused."""

from pathlib import Path

import pytest

from areal_like.config.problems import ConfigError
from areal_like.discovery.etcd_client import PASSWORD
from tests.support.commands import process
from tests.support.etcd_server import etcd_servers, require_etcd, require_users
from tests.support.fake_runs import start_fake_run
from tests.support.planning import loaded, machine_with, plan_of

SECTION = "cluster.name_resolve"
ETCD = f"{SECTION}.type=etcd3"
SECRET = "hunter2-of-jane"


def needs(*words, packages=frozenset({"pyetcd"}), host=None):
    """What keeps a run over etcd from starting, by key."""
    host = (host or machine_with())._replace(packages=machine_with().packages | packages)
    return {each.key: each.message for each in plan_of("grpo", ETCD, *words, host=host).needs if SECTION in each.key}


def test_a_run_over_etcd_needs_its_client_and_is_told_the_command():
    reason = needs(packages=frozenset())[f"{SECTION}.type"]
    assert reason.startswith("etcd3 needs the package pyetcd, which is not installed; ")
    assert "install -c constraints.txt etcd-sdk-python" in reason
    assert needs() == {}


def test_a_user_needs_a_password_from_the_key_the_environment_or_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv(PASSWORD, raising=False)
    user = f"{SECTION}.etcd3_user=jane"
    assert "set one of them to the password of jane" in needs(user)[f"{SECTION}.etcd3_password"]
    assert needs(user, f"{SECTION}.etcd3_password={SECRET}") == {}
    (tmp_path / "keys.env").write_text(f"{PASSWORD}={SECRET}\n")
    host = machine_with()._replace(directory=tmp_path)
    assert needs(user, "launcher.env_file=[keys.env]", host=host) == {}
    monkeypatch.setenv(PASSWORD, SECRET)
    assert needs(user) == {}


def test_certificates_need_their_key_and_must_exist(tmp_path):
    (tmp_path / "a.pem").write_text("x")
    host = machine_with()._replace(directory=tmp_path)
    found = needs(f"{SECTION}.etcd3_client_cert=a.pem", f"{SECTION}.etcd3_ca_cert=b.pem", host=host)
    assert found == {
        f"{SECTION}.etcd3_client_cert": f"is set without {SECTION}.etcd3_client_key; set both or neither",
        f"{SECTION}.etcd3_ca_cert": "there is no file b.pem",
    }


@pytest.mark.parametrize("address", ["localhost", "a:1,b", "http://jane:pw@a:1", "a:1;b:2"])
def test_addresses_that_are_not_host_and_port_are_refused(address):
    with pytest.raises(ConfigError, match="host:port, and further members after commas") as refused:
        loaded("grpo", ETCD, f"{SECTION}.etcd3_addr='{address}'")
    assert [problem.key for problem in refused.value.problems] == [f"{SECTION}.etcd3_addr"]


def test_a_start_without_etcd_is_refused_before_any_process_starts(tmp_path):
    require_etcd()
    done = start_fake_run(tmp_path, ETCD, f"{SECTION}.etcd3_addr='127.0.0.1:1,127.0.0.1:2'").wait()
    assert done.code == 2
    assert done.err == (
        f"{SECTION}.etcd3_addr: no etcd answers at 127.0.0.1:1 (Connection refused), 127.0.0.1:2 (Connection refused); "
        "start it, or correct the address\n1 problem; nothing was started.\n"
    )
    assert not list((tmp_path / "runs").rglob("logs"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """An etcd that requires a user."""
    with etcd_servers(tmp_path_factory.mktemp("etcd")) as (member,):
        require_users(member, jane=["names"])
        yield member


def words_for(member):
    return (ETCD, f"{SECTION}.etcd3_addr={member.address}", f"{SECTION}.etcd3_user=jane")


def fake_run(root, member, *words, **behaviour):
    keys = {"type": "etcd3", "etcd3_addr": member.address, "etcd3_user": "jane"}
    words = (*words_for(member), f"{SECTION}.etcd3_password=jane-secret", *words)
    return start_fake_run(root, *words, etcd=keys, **behaviour)


def test_a_run_over_etcd_is_found_by_others_and_its_password_by_its_processes_alone(guarded, tmp_path, monkeypatch):
    monkeypatch.delenv(PASSWORD, raising=False)
    run = fake_run(tmp_path, guarded, "trial_name=mine", steps=100_000)
    run.until("metrics/trainer-0.jsonl")
    pids = run.pids()
    for name in ("server/0", "rollout/0", "trainer/0"):
        assert f"{PASSWORD}=jane-secret" in Path(f"/proc/{pids[name]}/environ").read_text().split("\0")
        assert "jane-secret" not in Path(f"/proc/{pids[name]}/cmdline").read_text()
    monkeypatch.setenv(PASSWORD, "jane-secret")
    for flags in ([], ["--dry-run"]):
        words = ("--config", "grpo.yaml", "tracker=none", "trial_name=mine", *flags)
        done = process(*words, f"cluster.fileroot={tmp_path}/runs", *words_for(guarded))
        assert "grpo-addition/mine is already running (pid " in done.stdout + done.stderr, done
        assert done.returncode == (0 if flags else 2)
    run.kill("launcher")
    assert run.wait().code == 1
    # at once, long before its lease ends
    ended = fake_run(tmp_path, guarded, "trial_name=mine", "total_train_steps=1000000", steps=2).wait()
    assert ended.code == 0, ended.err
    assert "jane-secret" not in ended.out + ended.err
    for path in ended.directory.rglob("*"):
        assert not path.is_file() or b"jane-secret" not in path.read_bytes(), path


def test_keys_of_etcd_without_its_type_are_reported():
    address, user = f"{SECTION}.etcd3_addr=etcd:2379", f"{SECTION}.etcd3_user=jane"
    reason = f"has no effect: {SECTION}.type is nfs"
    warned = [each for each in plan_of("grpo", address, user).warnings if SECTION in each]
    assert warned == [f"{SECTION}.etcd3_addr: {reason}", f"{SECTION}.etcd3_user: {reason}"]
    host = machine_with()._replace(packages=machine_with().packages | {"pyetcd"})
    assert not [each for each in plan_of("grpo", ETCD, address, host=host).warnings if SECTION in each]
