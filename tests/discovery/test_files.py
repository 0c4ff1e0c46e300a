"""The file store of names: races, expiry, takeover and cleanup, with real processes."""

import logging
import os
import signal
import stat
import threading
import time
from pathlib import Path

import pytest

from areal_like.discovery import NameMissing, NameTaken, file_name_store, owner
from areal_like.discovery.file_entry import Claim, EntryFiles, EntryState, HeartbeatCounters, Liveness, remove
from areal_like.discovery.owner import is_alive, started_at, this_process
from areal_like.process.errors import Failure, TimedOut
from areal_like.process.wait import NamedWait

PREFIX = "me/grpo/r0001"
TTL_S = 0.3


@pytest.fixture
def root(tmp_path):
    return tmp_path / "names"


@pytest.fixture
def kind():
    return "nfs"


@pytest.fixture
def names(root):
    with file_name_store(root, PREFIX, "launcher/0", TTL_S) as opened:
        yield opened


class Clock:
    """A clock for counters that a test moves forward."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(names):
    made = Clock()
    names._liveness._counters = HeartbeatCounters(made)
    return made


def wait_until(condition, limit_s=60.0):
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends, "what was waited for did not happen"
        time.sleep(0.01)


ME = this_process()
DEAD = ME._replace(started=1)
ELSEWHERE = ME._replace(host="other", boot="another-boot")


def slot_of(root, name):
    path = Path(root, PREFIX, f"{name}@entry")
    return EntryFiles(path.parent, path)


def claim_of(owner, name="", id="id", ttl_s=TTL_S):
    return Claim(id, f"{PREFIX}/{name}", owner, "server/7", "yesterday", ttl_s)


class OtherOwnersEntry:
    """An entry as a process that cannot be seen from here would make it."""

    def __init__(self, root, name, owner=ELSEWHERE, ttl_s=TTL_S):
        self.slot = slot_of(root, name)
        self.slot.folder.mkdir(parents=True, exist_ok=True)
        self.id = f"id{time.monotonic_ns()}"
        self.counter = 0
        self.beat()
        assert self.slot.hold(claim_of(owner, name, self.id, ttl_s))

    def beat(self):
        self.counter += 1
        self.slot.write(self.id, EntryState(self.counter, "of a stranger"))


def state_of(root, name):
    held = slot_of(root, name).read()
    assert held is not None and held.state is not None
    return held.state


def limited_wait(limit_s=5.0):
    return NamedWait("a name that a dead one holds", limit_s, "cluster.name_resolve.ttl_s")


def test_a_stopped_process_on_this_machine_keeps_its_name(names, workers, clock):
    (worker,) = workers("server/0", ttl_s=TTL_S)
    worker.add("server/0")
    assert worker.answer() == "won"
    os.kill(worker.process.pid, signal.SIGSTOP)
    assert names.get("server/0") == "server/0"
    clock.now += 100 * TTL_S
    with pytest.raises(NameTaken):
        names.add("server/0", "mine", waiting=limited_wait())
    assert names.get("server/0") == "server/0"


def test_another_process_with_the_pid_of_the_owner_is_not_the_owner(root, names):
    OtherOwnersEntry(root, "server/0", ME._replace(started=ME.started - 1))
    assert names.find() == {}
    names.add("server/0", "mine")


def test_a_process_is_identified_by_pid_and_start_time():
    assert is_alive(ME)
    assert not is_alive(DEAD)
    assert started_at(2**22 + 1) is None


def test_an_entry_of_another_host_is_taken_over_when_its_counter_stops(root, names, caplog):
    caplog.set_level(logging.INFO)
    OtherOwnersEntry(root, "server/0")
    began = time.monotonic()
    names.add("server/0", "mine", waiting=limited_wait())
    assert time.monotonic() - began >= TTL_S
    assert names.get("server/0") == "mine"
    assert "server/7) on host other since yesterday; taking it over if its counter does not move" in caplog.text
    assert "its counter stood still" in caplog.text


@pytest.mark.parametrize("difference", [{"host": "h"}, {"boot": "b"}, {"space": "pid:[1]"}])
def test_a_process_of_another_pid_namespace_first_counts_as_alive(root, names, difference):
    OtherOwnersEntry(root, "server/0", DEAD._replace(**difference))
    assert names.get("server/0") == "of a stranger"
    with pytest.raises(NameTaken):
        names.add("server/0", "mine")


def test_an_entry_of_another_host_is_kept_while_its_counter_moves(root, names, clock):
    other = OtherOwnersEntry(root, "server/0")
    for _ in range(12):
        assert names.get("server/0") == "of a stranger"
        other.beat()
        clock.now += 0.9 * TTL_S
    beating = threading.Timer(TTL_S / 2, other.beat)
    beating.start()
    with pytest.raises(NameTaken, match="which is alive"):
        names.add("server/0", "mine", waiting=limited_wait())
    beating.join()


def test_an_entry_of_another_host_that_expired_is_not_listed(root, names, clock):
    OtherOwnersEntry(root, "server/0")
    assert list(names.find()) == ["server/0"]
    clock.now += 1.1 * TTL_S
    assert names.find() == {}
    with pytest.raises(NameMissing, match="its counter stood still for"):
        names.get("server/0")
    names.add("server/0", "mine")


def test_an_entry_expires_after_its_own_time_to_live(root, names, clock):
    OtherOwnersEntry(root, "server/0", ttl_s=60.0)
    names.find()
    clock.now += 59.0
    assert names.get("server/0") == "of a stranger"
    clock.now += 1.0
    with pytest.raises(NameMissing):
        names.get("server/0")


def test_watching_ends_at_its_limit_and_leaves_no_file(root, names):
    OtherOwnersEntry(root, "server/0", ttl_s=60.0)
    before = sorted(root.rglob("*"))
    with pytest.raises(TimedOut, match=r"^cluster.name_resolve.ttl_s: "):
        names.add("server/0", "mine", waiting=limited_wait(0.1))
    assert sorted(root.rglob("*")) == before


def test_expiry_is_measured_by_the_clock_of_the_observer():
    now = [100.0]
    counters = HeartbeatCounters(lambda: now[0])
    seen = []
    for moment, counter in [(100, 5), (104, 5), (106, None), (110, 6), (111, 6), (190, 6)]:
        now[0] = moment
        seen.append(counters.unchanged_s("id", counter))
    assert seen == [0, 4, 6, 0, 1, 80]


def test_the_heartbeat_moves_the_counter_and_nothing_else(root, names):
    names.add("server/0", "mine")
    before = state_of(root, "server/0")
    wait_until(lambda: state_of(root, "server/0").counter > before.counter)
    after = state_of(root, "server/0")
    assert after.value == before.value == "mine"


def test_a_heartbeat_continues_after_a_failure(root, names, monkeypatch, caplog):
    names.add("server/0", "mine")
    with monkeypatch.context() as broken:

        def full(self, id, state):
            raise OSError(28, "No space left on device")

        broken.setattr(EntryFiles, "write", full)
        wait_until(lambda: "could not be renewed" in caplog.text)
    counter = state_of(root, "server/0").counter
    wait_until(lambda: state_of(root, "server/0").counter > counter)
    assert not names.lost
    assert "could not be renewed; trying again: [Errno 28]" in caplog.text


def test_a_write_that_hangs_holds_up_no_removal_for_longer_than_the_time_to_live(names, monkeypatch, caplog):
    """The supervisor removes the names of processes that have ended, and at the end all of them."""
    names.add("server/0", "mine")
    hangs, answers, write = threading.Event(), threading.Event(), EntryFiles.write

    def hanging(self, id, state):
        hangs.set()
        answers.wait(10)
        write(self, id, state)

    monkeypatch.setattr(EntryFiles, "write", hanging)
    assert hangs.wait(60)
    names.delete("server/0")
    names.clear()
    assert not answers.is_set() and caplog.text.count("has not answered for 0.3 s") == 1
    answers.set()
    wait_until(lambda: not names.delete("server/0") and not names._is_silent)
    assert names.find() == {}


def test_an_owner_that_lost_its_name_does_not_overwrite_the_new_owner(root, names, workers, caplog):
    (worker,) = workers("server/0", ttl_s=TTL_S)
    worker.add("a")
    assert worker.answer() == "won"
    os.kill(worker.process.pid, signal.SIGSTOP)
    names.delete("a")
    names.add("a", "mine")
    os.kill(worker.process.pid, signal.SIGCONT)
    wait_until(lambda: len(list(root.rglob(".*"))) == 1)
    assert names.get("a") == "mine"
    assert not names.lost


def test_a_late_removal_of_a_dead_entry_keeps_the_new_entry(root, names):
    dead = OtherOwnersEntry(root, "a", DEAD)
    names.add("a", "mine")
    assert remove(dead.slot, dead.id, Liveness(ME, TTL_S), lambda: claim_of(ME)) is None
    assert names.get("a") == "mine"
    assert len(list(root.rglob(".*"))) == 1


def test_a_dead_entry_that_is_being_removed_is_not_removed_twice(root, names, monkeypatch):
    """Were there two, the slower could remove what the quicker has put there since."""
    monkeypatch.setattr("areal_like.discovery.file_entry.MAX_TRIES", 3)
    dead = OtherOwnersEntry(root, "a", DEAD)
    assert dead.slot.mark(dead.id).hold(claim_of(ME))
    with pytest.raises(NameTaken, match=r"\(server/7\) .* which removes an entry of process"):
        names.add("a", "mine")
    assert dead.slot.path.exists()
    dead.slot.mark(dead.id).path.unlink()
    names.add("a", "mine")


@pytest.mark.parametrize("deep", [1, 3])
def test_a_process_killed_during_a_removal_does_not_block_the_name(root, names, deep):
    slot = OtherOwnersEntry(root, "a", DEAD).slot
    held = slot.read()
    assert held is not None
    mark = slot.mark(held.claim.id)
    for place in range(deep):
        assert mark.hold(claim_of(DEAD, id=f"mark{place}"))
        mark = mark.mark(f"mark{place}")
    names.add("a", "mine")
    assert names.get("a") == "mine"
    assert len(list(root.rglob(".*"))) == 1


def test_an_addition_whose_confirmation_was_lost_counts(root, names, monkeypatch):
    link = os.link

    def answer_lost(source, target):
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", answer_lost)
    names.add("a", "mine")
    assert names.get("a") == "mine"


@pytest.mark.parametrize("content", [b"", b'{"id": "x', b"[]", b"null", b'{"id": "../x", "owner": {}}', b"\xff\xfe"])
def test_an_unreadable_claim_is_watched_like_an_entry_of_another_host(root, names, content, caplog):
    folder = root / PREFIX / "server"
    folder.mkdir()
    (folder / "0@entry").write_bytes(content)
    assert names.find() == names.find() == {}
    assert caplog.text.count("cannot be read") == 1
    with pytest.raises(NameMissing, match="its value cannot be read"):
        names.get("server/0")
    with pytest.raises(NameTaken, match="an entry that cannot be read"):
        names.add("server/0", "mine")
    names.add("server/0", "mine", waiting=limited_wait())
    assert names.find() == {"server/0": "mine"}


@pytest.mark.parametrize("content", [b"", b'{"counter": 1, "va', b'{"counter": 1, "value": [1]}', b"7"])
def test_a_state_that_cannot_be_read_is_missing_until_the_next_heartbeat(root, names, content):
    names.add("a", "mine")
    (state,) = root.rglob(".state-*")
    state.write_bytes(content)
    with pytest.raises(NameMissing, match="its value cannot be read"):
        names.get("a")
    assert names.wait("a", limited_wait()) == "mine"
    assert not names.lost


def test_a_stale_read_is_repeated(names, monkeypatch):
    names.add("a", "mine")
    read, tries = Path.read_bytes, []

    def stale_at_first(path):
        tries.append(path)
        if len(tries) < 3:
            raise OSError(116, "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale_at_first)
    assert names.get("a") == "mine"


def test_folders_and_files_are_private_to_their_user(root, names):
    before = os.umask(0)
    try:
        with file_name_store(root / "deep" / "below", "him/ppo/r1", "server/0", TTL_S) as other:
            other.add("server/0", "mine")
            names.add("server/0", "mine")
            found = [root, *root.rglob("*")]
            modes = {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()}
            assert modes == {0o600}
            # Folders above the root belong to the user, and keep the mode of the umask.
            named = [path for path in found if path.is_dir() and path != root / "deep"]
            assert {stat.S_IMODE(path.stat().st_mode) for path in named} == {0o700}
    finally:
        os.umask(before)


def test_own_folders_writable_by_others_are_made_private(root):
    (root / "me").mkdir(parents=True)
    root.chmod(0o777)
    (root / "me").chmod(0o777)
    with file_name_store(root, PREFIX, "launcher/0", TTL_S):
        assert stat.S_IMODE((root / "me").stat().st_mode) == 0o700
        assert stat.S_IMODE(root.stat().st_mode) == 0o777, "users may share the root"


def test_folders_of_another_user_are_refused(root, monkeypatch):
    monkeypatch.setattr("areal_like.discovery.files.user_of_new_files", lambda folder: os.getuid() + 1)
    with pytest.raises(Failure, match=r"^cluster.name_resolve.nfs_record_root: .* belongs to another user"):
        file_name_store(root, PREFIX, "launcher/0", TTL_S)


def test_a_root_that_is_no_folder_is_refused_with_its_key(root):
    root.write_text("a file")
    with pytest.raises(Failure, match=r"^cluster.name_resolve.nfs_record_root: .*; set it to a folder"):
        file_name_store(root, PREFIX, "launcher/0", TTL_S)


def test_a_disk_without_links_is_refused_with_its_key(names, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted", str(source))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(Failure, match=r"^cluster.name_resolve.nfs_record_root: .*; set it to a folder .* links"):
        names.add("a", "mine")


def test_closing_all_stores_leaves_no_files(root):
    with file_name_store(root, PREFIX, "a", TTL_S) as first, file_name_store(root, PREFIX, "b", TTL_S) as second:
        first.add("server/0", "x")
        second.add("server/1", "x")
        second.add("deep/er/still", "x")
    assert list(root.iterdir()) == []


def test_clearing_removes_partial_files_of_killed_processes(root, names):
    folder = root / PREFIX / "server"
    folder.mkdir()
    (folder / ".new-1").write_text("half")
    (folder / ".state-2").write_text("half")
    slot = OtherOwnersEntry(root, "server/0", DEAD).slot
    assert slot.mark("3").hold(claim_of(DEAD))
    names.add("server/1", "mine")
    names.clear()
    assert names.find() == {"server/1": "mine"}
    assert len(list(folder.iterdir())) == 2


def test_a_folder_removed_during_an_addition_is_created_again(names, root, monkeypatch):
    names.add("server/0", "x")
    write = EntryFiles.write
    times: list[int] = []

    def late(self, id, state):
        if not times:
            times.append(1)
            self.folder.rmdir()  # as one that closes just now would
        write(self, id, state)

    monkeypatch.setattr(EntryFiles, "write", late)
    names.add("rollout/0", "y")
    assert names.find() == {"rollout/0": "y", "server/0": "x"}


def test_a_process_that_proc_hides_from_this_user_is_dead_only_once_its_counter_stands_still(
    root, monkeypatch, tmp_path
):
    def not_permitted(pid: int, sign: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with (
        file_name_store(root, PREFIX, "launcher/0", TTL_S) as theirs,
        file_name_store(root, PREFIX, "b", TTL_S) as ours,
    ):
        theirs.add("launcher/0", "1")
        assert theirs.holds("launcher/0") and not theirs.holds("launcher/1")
        monkeypatch.setattr(owner, "PROC", tmp_path)
        monkeypatch.setattr(os, "kill", not_permitted)
        assert is_alive(ME) is None
        with pytest.raises(NameTaken, match="which is alive"):
            ours.add("launcher/0", "2", waiting=NamedWait("the name", 60.0, "test"))
        assert ours.holder("launcher/0") is not None
        stopped: threading.Event = vars(theirs)["_stopped"]
        stopped.set()  # its counter stands still
        ours.add("launcher/0", "2", waiting=NamedWait("the name", 60.0, "test"))
        monkeypatch.undo()
