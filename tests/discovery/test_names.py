"""The contract of every kind of name store. etcd3 runs on a real etcd."""

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_like.discovery import (
    Entry,
    NameMissing,
    NameTaken,
    announce,
    name_store_for,
    open_name_store,
    parse_entry,
)
from areal_like.discovery.base import sorted_entries
from areal_like.discovery.etcd import EtcdNameStore
from areal_like.discovery.file_entry import read_name_claim
from areal_like.process.errors import Failure, TimedOut
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from tests.discovery.conftest import TTL_S, Stores
from tests.support.etcd_server import name_resolve, section_of

ROUNDS = 12
OTHER_PROCESSES = pytest.mark.parametrize("kind", ["nfs", "etcd3"], indirect=True)
"""For what no other process sees: names in memory."""


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
    with pytest.raises(NameTaken, match=r"the name (\S+/)?me/grpo/r0001/launcher/0 is held by .*launcher/0") as caught:
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


@pytest.mark.parametrize(
    "value", ["", "[]", "5", '{"address": "a:1"}', '{"address": "a:1", "attempt": "x"}', "\x1b[2J"]
)
def test_a_value_that_no_process_announced_is_a_failure_in_words(value):
    with pytest.raises(Failure, match="another program has written") as refused:
        parse_entry(value)
    assert str(refused.value).isprintable()


def configured(type, root="names", **keys):
    store = name_resolve(**{"type": type, "nfs_record_root": str(root), "ttl_s": TTL_S, **keys})
    return SimpleNamespace(
        cluster=SimpleNamespace(name_resolve=store), experiment_name="grpo", trial_name=f"trial-{time.monotonic_ns()}"
    )


def time_to_live_of(name, store, root):
    """As it is entered beside the name."""
    if isinstance(store, EtcdNameStore):
        asked = store._rpc.LeaseTimeToLiveRequest(ID=store._lease)
        return store._client.call("Lease", "LeaseTimeToLive", asked).grantedTTL
    claim = read_name_claim(root, store.prefix, name)
    assert claim is not None
    return claim.ttl_s


@pytest.mark.shows("cluster.name_resolve.type", "cluster.name_resolve.etcd3_addr")
def test_the_processes_of_a_run_find_each_other_by_its_configuration(kind, tmp_path, monkeypatch, request):
    monkeypatch.setenv("LOGNAME", "jane")
    address = section_of(request.getfixturevalue("etcd")).etcd3_addr if kind == "etcd3" else "localhost:1"
    config = configured(kind, etcd3_addr=address, ttl_s=7.0)
    run = Run(tmp_path / "run", config, "grpo", "id", tmp_path, tmp_path)
    with (
        name_store_for(config, tmp_path, "launcher/0") as launcher,
        open_name_store(run, Identity("server", 0)) as server,
    ):
        launcher.check()
        server.add("server/0", "here")
        assert launcher.get("server/0") == "here"
        assert launcher.prefix == f"jane/grpo/{config.trial_name}"
        assert kind == "memory" or time_to_live_of("server/0", server, tmp_path / "names") == 7
    assert (tmp_path / "names").exists() == (kind == "nfs")


def test_a_store_that_is_not_built_yet_is_refused_with_the_one_to_use(tmp_path):
    with pytest.raises(ValueError, match=r"^cluster.name_resolve.type: ray is not built yet .*nfs, etcd3, memory"):
        name_store_for(configured("ray"), tmp_path, "launcher/0")


def test_a_user_without_a_name_is_identified_by_uid(tmp_path, monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    config = configured("memory")
    with name_store_for(config, tmp_path, "launcher/0") as names:
        assert names.prefix.startswith("1234/grpo/")


def test_a_watch_returns_as_soon_as_the_entries_below_a_name_differ(opened):
    ours, theirs = opened(), opened()
    theirs.add("server/0", "first")
    known = ours.watch("server", {}, wait_for("a first server"))
    assert known == {"server/0": "first"}
    for change, expected in (
        (lambda: theirs.add("server/1", "second"), {"server/0": "first", "server/1": "second"}),
        (lambda: theirs.add("server/0", "moved", replace=True), {"server/0": "moved", "server/1": "second"}),
        (lambda: theirs.delete("server/1"), {"server/0": "moved"}),
    ):
        late = threading.Timer(0.05, change)
        late.start()
        known = ours.watch("server", known, wait_for("a change"))
        late.join()
        assert known == expected
    theirs.add("rollout/0", "beside it")
    with pytest.raises(TimedOut, match=r"rollout.setup_timeout: waited .* for another server; the limit is 0.05 s"):
        ours.watch("server", known, NamedWait("another server", 0.05, "rollout.setup_timeout"))


def wait_for(what, limit_s=60.0):
    return NamedWait(what, limit_s, "rollout.setup_timeout")


def test_the_holder_of_a_name_is_known_while_it_lives(opened):
    ours = opened("launcher/0")
    assert opened().holder("launcher/0") is None
    ours.add("launcher/0", "x")
    holder = opened().holder("launcher/0")
    assert holder is not None and holder.process == "launcher/0" and holder.owner is not None
    assert Path(f"/proc/{holder.owner.pid}/comm").exists() and str(holder).startswith(f"process {holder.owner.pid} (")
    ours.close()
    assert opened().holder("launcher/0") is None


def test_one_of_several_threads_that_add_a_name_at_once_wins(opened):
    names, won = opened(), []

    def add(place):
        try:
            names.add("a", str(place))
            won.append(str(place))
        except NameTaken:
            pass

    threads = [threading.Thread(target=add, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [names.get("a")]


@OTHER_PROCESSES
def test_one_of_several_processes_that_add_a_name_at_once_wins(opened, workers):
    names, racers = opened(), workers("server/0", "server/1")
    (dead,) = workers("server/2")
    dead_names = [f"race/{place}" for place in range(1, ROUNDS, 2)]
    for name in dead_names:
        dead.add(name)  # both see a dead owner, and want to take over
        assert dead.answer() == "won"
    dead.kill()
    for place in range(ROUNDS):
        name, moment = f"race/{place}", time.monotonic() + 0.01
        for racer in racers:
            racer.add(name, moment)
        answers = [racer.answer() for racer in racers]
        assert answers.count("won") == 1, answers
        winner = f"server/{answers.index('won')}"
        assert names.get(name) == winner
        assert f"({winner}) on host" in next(answer for answer in answers if answer != "won")
    assert len(names.find("race")) == ROUNDS
    if opened.kind == "nfs":
        assert len(list((opened.root / "names").rglob(".*"))) == ROUNDS, "one state for each entry and nothing else"


@pytest.mark.parametrize("kind", ["etcd3"], indirect=True)
def test_a_process_whose_main_thread_is_busy_keeps_its_name(opened, workers):
    names, (worker,) = opened(), workers("server/0", ttl_s=TTL_S)
    worker.add("server/0")
    assert worker.answer() == "won"
    worker.add("server/1", time.monotonic() + 2.0)  # it computes until then, longer than etcd's shortest lease
    entries = names.watch("server", {"server/0": "server/0"}, wait_for("the second name"))
    assert entries.keys() == {"server/0", "server/1"}


@OTHER_PROCESSES
def test_the_name_of_a_killed_process_is_free_before_it_is_reaped(opened, workers):
    names, (worker,) = opened("launcher/0"), workers("server/0")
    worker.add("server/0")
    assert worker.answer() == "won"
    with pytest.raises(NameTaken, match=rf"held by process {worker.process.pid} \(server/0\) on host .* since 2"):
        names.add("server/0", "mine")
    assert names.find() == {"server/0": "server/0"}
    worker.kill()
    with pytest.raises(NameMissing, match="that process has ended"):
        names.get("server/0")
    assert names.find() == {} and names.holder("server/0") is None
    names.add("server/0", "mine")
    assert names.get("server/0") == "mine"


@OTHER_PROCESSES
def test_a_name_of_another_host_is_taken_over_when_it_is_not_renewed(opened, monkeypatch):
    ours, theirs = opened(), opened.elsewhere(monkeypatch, "server/7")
    theirs.add("server/0", "theirs")
    theirs._stopped.set()  # as if it had been killed
    with pytest.raises(NameTaken, match=r"\(server/7\) on host other since "):
        ours.add("server/0", "mine")
    ours.add("server/0", "mine", waiting=wait_for("server/7 to be dead"))
    assert ours.get("server/0") == "mine" and not ours.lost


@OTHER_PROCESSES
def test_a_name_of_another_host_is_kept_while_it_is_renewed(opened, monkeypatch):
    ours, theirs = opened(), opened.elsewhere(monkeypatch, "server/7")
    theirs.add("server/0", "theirs")
    with pytest.raises(NameTaken, match="which is alive"):
        ours.add("server/0", "mine", waiting=wait_for("server/7 to be dead"))
    assert ours.get("server/0") == "theirs" and not theirs.lost


@OTHER_PROCESSES
def test_an_entry_that_is_not_renewed_is_not_listed_any_more(opened, monkeypatch):
    ours, theirs = opened(), opened.elsewhere(monkeypatch)
    theirs.add("server/0", "theirs")
    assert ours.find() == {"server/0": "theirs"}
    theirs._stopped.set()
    eventually(lambda: ours.find() == {})
    with pytest.raises(NameMissing):
        ours.get("server/0")


NAMES = st.sampled_from(["server", "server/0", "server/1", "server/1/a", "rollout/0"])
CHANGES = st.sampled_from(["add", "replace", "delete", "clear"])
STEPS = st.lists(st.tuples(CHANGES, st.integers(0, 1), NAMES), max_size=12)


@pytest.mark.parametrize("kind", ["nfs", "etcd3", "memory"])
def test_any_sequence_of_changes_has_the_effect_of_a_table(kind, tmp_path_factory, request):
    members = request.getfixturevalue("etcd") if kind == "etcd3" else None

    @settings(max_examples=settings().max_examples // 5)
    @given(STEPS)
    def check(steps):
        stores = Stores(kind, tmp_path_factory.mktemp("any"), members)
        table: dict[str, tuple[int, str]] = {}
        opened = [stores("server/0", ttl_s=30.0), stores("server/1", ttl_s=30.0)]
        try:
            for number, (what, who, name) in enumerate(steps):
                allowed = apply(table, what, who, name, str(number))
                with nullcontext() if allowed else pytest.raises((NameTaken, NameMissing)):
                    if what in ("add", "replace"):
                        opened[who].add(name, str(number), replace=what == "replace")
                    else:
                        getattr(opened[who], what)(name)
                expected = sorted_entries({name: value for name, (_, value) in table.items()})
                assert list(opened[1 - who].find().items()) == list(expected.items())
        finally:
            stores.close()

    check()


def apply(table, what, who, name, value):
    """Whether a change is allowed; it is made in the table."""
    holder = table.get(name, (None, ""))[0]
    if what == "clear":
        for other in [each for each in table if f"{each}/".startswith(f"{name}/") and table[each][0] != who]:
            del table[other]
        return True
    if what == "delete":
        return table.pop(name, None) is not None
    if holder is None or (what == "replace" and holder == who):
        table[name] = (who, value)
        return True
    return False
