"""The contract of every store of names."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from areal_like.discovery import (
    Entry,
    MemoryEntries,
    NameMissing,
    NameTaken,
    announce,
    file_name_store,
    memory_name_store,
    name_store_for,
    open_name_store,
    parse_entry,
)
from areal_like.process.errors import TimedOut
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait

TTL_S = 0.15


@pytest.fixture(params=["nfs", "memory"])
def opened(request, tmp_path):
    """Opens the names of one more process of a run; closes them all at the end."""
    store, all_names = MemoryEntries(), []

    def open_one(owner="trainer/0", prefix="me/grpo/r0001"):
        if request.param == "nfs":
            names = file_name_store(tmp_path / "names", prefix, owner, TTL_S)
        else:
            names = memory_name_store(prefix, owner, store)
        all_names.append(names)
        return names

    yield open_one
    for names in all_names:
        names.close()


def eventually(condition, limit_s=60.0):
    waiting = NamedWait("the condition of a test", limit_s, "limit_s")
    while not condition():
        waiting.check()
        time.sleep(0.01)


def test_a_name_added_by_one_process_is_read_by_another(opened):
    ours, theirs = opened("server/0"), opened("trainer/0")
    ours.add("server/0", "127.0.0.1:4444")
    assert theirs.get("server/0") == ours.get("server/0") == "127.0.0.1:4444"


def test_an_unclaimed_name_is_missing(opened):
    with pytest.raises(NameMissing, match=r"me/grpo/r0001/server/0: no process has entered it"):
        opened().get("server/0")


def test_a_claimed_name_is_refused_and_its_owner_named(opened):
    ours, theirs = opened("launcher/0"), opened("launcher/0 of another run")
    ours.add("launcher/0", "first")
    with pytest.raises(NameTaken, match=r"the name me/grpo/r0001/launcher/0 is held by .*launcher/0") as caught:
        theirs.add("launcher/0", "second")
    assert caught.value.holder in str(caught.value)
    assert theirs.get("launcher/0") == "first"


def test_only_the_owner_replaces_an_entry_and_only_with_replace(opened):
    ours, theirs = opened(), opened()
    ours.add("a", "1")
    with pytest.raises(NameTaken):
        ours.add("a", "2")
    with pytest.raises(NameTaken):
        theirs.add("a", "3", replace=True)
    ours.add("a", "4", replace=True)
    assert theirs.get("a") == "4"


def test_replace_adds_a_missing_entry(opened):
    names = opened()
    names.add("a", "1", replace=True)
    assert names.get("a") == "1"


def test_a_subtree_is_listed_in_order_and_without_siblings(opened):
    names = opened()
    for name in ("server/10", "server/2", "server", "server2/0", "rollout/0"):
        names.add(name, f"value of {name}")
    assert list(opened().find("server")) == ["server", "server/2", "server/10"]
    assert list(opened().find()) == ["rollout/0", "server", "server/2", "server/10", "server2/0"]
    assert opened().find("server/2") == {"server/2": "value of server/2"}
    assert opened().find("nothing") == {}


def test_runs_with_different_prefixes_are_separate(opened):
    opened(prefix="me/grpo/r0001").add("server/0", "one")
    other = opened(prefix="me/grpo/r0002")
    assert other.find() == {}
    other.add("server/0", "two")
    assert opened(prefix="me/grpo").find() == {"r0001/server/0": "one", "r0002/server/0": "two"}
    assert opened(prefix="").get("me/grpo/r0002/server/0") == "two"


ODD = (
    "ä ö/ü",
    "..",
    "./.hidden",
    "a%2Fb",
    "a@entry",
    "a@entry/b",
    "%",
    "new\nline",
    "名前" * 80,
    "名前" * 80 + "/x",
    ".new-1",
)


def test_unusual_names_stay_distinct_and_unchanged(opened):
    names = opened()
    for place, name in enumerate(ODD):
        names.add(name, str(place))
    assert opened().find() == {name: str(place) for place, name in enumerate(ODD)}
    assert [opened().get(name) for name in ODD] == [str(place) for place in range(len(ODD))]


@pytest.mark.parametrize("name", ["/a", "a/", "a//b", "", "/"])
def test_an_invalid_name_is_refused(opened, name):
    with pytest.raises(ValueError, match=r"is not a name|not be empty"):
        opened().add(name, "value")
    with pytest.raises(ValueError, match=r"is not a name|not be empty"):
        opened().get(name)


def test_waiting_ends_when_the_name_appears(opened):
    ours, theirs = opened(), opened()
    late = threading.Timer(0.1, ours.add, ("server/0", "here"))
    late.start()
    assert theirs.wait("server/0", NamedWait("server/0", 5, "rollout.setup_timeout")) == "here"
    late.join()


def test_a_wait_past_its_limit_names_the_key_and_the_missing_name(opened):
    with pytest.raises(TimedOut, match=r"rollout.setup_timeout: waited .* for server/0; the limit is 0.05 s"):
        opened().wait("server/0", NamedWait("server/0", 0.05, "rollout.setup_timeout"))


def test_a_deleted_name_is_free_again(opened):
    ours, theirs = opened(), opened()
    ours.add("a", "1")
    ours.delete("a")
    with pytest.raises(NameMissing):
        theirs.get("a")
    theirs.add("a", "2")
    assert ours.get("a") == "2"
    assert not ours.lost


def test_deleting_a_missing_name_is_an_error(opened):
    with pytest.raises(NameMissing):
        opened().delete("a")


def test_the_owner_notices_that_its_entry_was_deleted(opened):
    ours, theirs = opened(), opened()
    ours.add("a", "1")
    ours.add("b", "1")
    theirs.delete("a")
    eventually(lambda: set(ours.lost) == {"a"})
    ours.add("a", "2")
    assert not ours.lost
    assert theirs.get("a") == "2"


def test_the_owner_notices_that_another_process_has_its_name(opened):
    ours, theirs = opened(), opened()
    ours.add("a", "1")
    theirs.delete("a")
    theirs.add("a", "2")
    eventually(lambda: set(ours.lost) == {"a"})
    ours.close()
    assert theirs.get("a") == "2"


def test_clearing_removes_entries_of_others_and_keeps_own_ones(opened):
    ours, theirs = opened(), opened()
    ours.add("server/0", "ours")
    for name in ("server/1", "server/2", "rollout/0"):
        theirs.add(name, "theirs")
    ours.clear("server")
    assert ours.find() == {"rollout/0": "theirs", "server/0": "ours"}
    ours.clear()
    assert ours.find() == {"server/0": "ours"}
    eventually(lambda: set(theirs.lost) == {"server/1", "server/2", "rollout/0"})
    assert not ours.lost


def test_closing_removes_only_own_entries(opened):
    ours, theirs = opened(), opened()
    ours.add("a", "1")
    theirs.add("b", "2")
    ours.close()
    ours.close()
    assert theirs.find() == {"b": "2"}


def test_leaving_the_with_block_closes(opened):
    with opened() as names:
        names.add("a", "1")
    assert opened().find() == {}


def test_an_announced_process_is_read_unchanged(opened):
    names, me = opened("server/1"), Identity("server", 1, attempt=2, incarnation=3)
    announce(names, me, "127.0.0.1:4444")
    announce(names, me, "127.0.0.1:5555")
    found = parse_entry(opened().get("server/1"))
    assert found[:3] == Entry("127.0.0.1:5555", 2, 3, 0)[:3]
    assert Path(f"/proc/{found.pid}/comm").exists()


def configured(type, root="names"):
    store = SimpleNamespace(type=type, nfs_record_root=str(root), ttl_s=TTL_S)
    return SimpleNamespace(
        cluster=SimpleNamespace(name_resolve=store), experiment_name="grpo", trial_name=f"trial-{time.monotonic_ns()}"
    )


@pytest.mark.parametrize("type", ["nfs", "memory"])
def test_the_processes_of_a_run_find_each_other_by_its_configuration(type, tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "jane")
    config = configured(type)
    run = Run(tmp_path / "run", config, "grpo", "id", tmp_path, tmp_path)
    with (
        name_store_for(config, tmp_path, "launcher/0") as launcher,
        open_name_store(run, Identity("server", 0)) as server,
    ):
        server.add("server/0", "here")
        assert launcher.get("server/0") == "here"
        assert launcher.prefix == f"jane/grpo/{config.trial_name}"
    assert (tmp_path / "names").exists() == (type == "nfs")


@pytest.mark.parametrize("type", ["etcd3", "ray"])
def test_a_store_that_is_not_built_yet_is_refused_with_the_one_to_use(type, tmp_path):
    with pytest.raises(ValueError, match=rf"^cluster.name_resolve.type: {type} is not built yet .*nfs, memory.*=nfs"):
        name_store_for(configured(type), tmp_path, "launcher/0")


def test_a_user_without_a_name_is_identified_by_uid(tmp_path, monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    config = configured("memory")
    with name_store_for(config, tmp_path, "launcher/0") as names:
        assert names.prefix.startswith("1234/grpo/")
