"""A process's phases and counters, as its launcher reads them in the memory that they share."""

import asyncio
import mmap
import os
import threading

import pytest

from areal_like.process import file_lock, hashed_files, pulse
from areal_like.process.atomic_file import fsync_tree
from areal_like.process.http import run_async
from areal_like.process.wait import NamedWait


@pytest.fixture
def page(monkeypatch):
    """The memory of this process's pulse, as the launcher made it."""
    descriptor = os.memfd_create("pulse")
    os.ftruncate(descriptor, pulse.PAGE_BYTES)
    page = mmap.mmap(descriptor, pulse.PAGE_BYTES)
    monkeypatch.setenv(pulse.PULSE_FD, str(descriptor))
    pulse.open_pulse()
    yield page
    pulse.close_pulse()


def only(page):
    (sample,) = pulse.read_slots(page)
    return sample


def test_phases_are_nested_and_a_slot_is_free_after_the_last(page):
    assert pulse.PULSE_FD not in os.environ, "children have no use for it"
    with pulse.phase(pulse.LOADING):
        assert only(page).phase == "loading"
        before = only(page).counter
        with pulse.phase(pulse.COLLECTIVE):
            assert (only(page).phase, only(page).collectives) == ("collective", 1)
        assert only(page).phase == "loading" and only(page).counter != before, "since the last collective"
        pulse.advance()
        assert only(page).thread == threading.get_native_id()
    assert pulse.read_slots(page) == ()


def test_a_wait_is_told_with_its_limit_until_the_next_progress(page):
    with pulse.phase(pulse.STEP):
        NamedWait("batch 5 from rollout/0", 3600.0, "rollout.request_timeout", "rollout/0").check()
        sample = only(page)
        assert (sample.phase, sample.what, sample.whom) == ("waiting", "batch 5 from rollout/0", "rollout/0")
        assert (sample.key, sample.limit_s) == ("rollout.request_timeout", 3600.0)
        pulse.waits("é" * 300, "x", "k", 1.0)
        assert only(page).what.startswith("éé"), "a long text is cut"
        pulse.advance()
        assert (only(page).phase, only(page).what) == ("step", "")


def test_looks_of_a_wait_are_no_progress(page):
    with pulse.phase(pulse.STEP):
        before = only(page)
        pulse.waits("batch 5", "rollout/0", "k", 1.0)
        pulse.waits("batch 5", "rollout/0", "k", 1.0)
        after = only(page)
        assert (after.counter, after.collectives, after.waits) == (before.counter, before.collectives, 2)


def test_a_loop_serves_in_its_own_phase_whatever_it_does_inside(page):
    with pulse.loop_phase():
        with pulse.phase(pulse.COMPILING):
            pulse.serves()
            assert only(page).phase == "compiling"
        assert only(page).phase == "serving"


def test_threads_and_forks_have_slots_of_their_own(page):
    with pulse.phase(pulse.STEP):
        with ThreadInPhase() as inside:
            assert {sample.phase for sample in pulse.read_slots(page)} == {"step", "saving"}, inside
        child = os.fork()
        if child == 0:
            with pulse.phase(pulse.SAVING):
                pulse.advance()
            os._exit(0)
        os.waitpid(child, 0)
        assert only(page).phase == "step"


class ThreadInPhase:
    """Another thread that saves."""

    def __enter__(self):
        self.began, self.ends = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        assert self.began.wait(60)
        return self

    def run(self):
        with pulse.phase(pulse.SAVING):
            self.began.set()
            self.ends.wait(60)

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def test_more_threads_than_slots_are_not_recorded_and_do_no_harm(page):
    works = [pulse.WorkPulse(pulse.GENERATING) for _ in range(pulse.SLOTS + 3)]
    for work in works:
        with work.running():
            work.advance()
    assert len(pulse.read_slots(page)) == pulse.SLOTS


def test_a_pulse_without_a_launcher_is_no_error():
    with pulse.phase(pulse.STEP):
        pulse.advance()
        pulse.waits("something")


def test_an_event_loop_beats_while_its_tasks_wait(page, monkeypatch):
    monkeypatch.setattr("areal_like.process.http.BEAT_S", 0.01)

    async def main():
        assert only(page).phase == "loading"
        pulse.serves()
        NamedWait("a server", 5.0, "a key").check()
        before = only(page)
        assert (before.phase, before.what) == ("serving", "a server"), "the loop itself does not wait"
        while only(page).counter < before.counter + 3:
            await asyncio.sleep(0.01)

    run_async(main())
    assert pulse.read_slots(page) == ()


def test_work_is_idle_while_there_is_none(page):
    work = pulse.WorkPulse(pulse.GENERATING)
    assert only(page).phase == "idle"
    with work.running(), work.running():
        assert only(page).phase == "generating"
    assert only(page).phase == "idle"


def test_a_file_is_synced_piece_by_piece_and_each_is_progress(page, tmp_path, monkeypatch):
    monkeypatch.setattr(hashed_files, "SYNC_BYTES", 2)
    monkeypatch.setattr(hashed_files, "BLOCK_BYTES", 1)
    with pulse.phase(pulse.SAVING):
        before = only(page).counter
        hashed_files.HashedFiles().write(tmp_path / "weights", b"123456")
        assert only(page).counter == before + 3
        fsync_tree(tmp_path)
        assert only(page).counter == before + 4
    assert (tmp_path / "weights").read_bytes() == b"123456"


def test_who_waits_for_a_lock_of_another_process_says_so(page, tmp_path):
    held, waits = (tmp_path / "lock").open("w"), (tmp_path / "lock").open("w")
    file_lock.lock(held, "nobody")

    def wait() -> None:
        with pulse.phase(pulse.LOADING):
            file_lock.lock(waits, "another process that loads")

    waiting = threading.Thread(target=wait)
    with held, waits:
        waiting.start()
        while not any(sample.phase == pulse.WAITING for sample in pulse.read_slots(page)):
            assert waiting.is_alive()
        assert only(page).what == "another process that loads"
        held.close()
        waiting.join(60)
        assert not waiting.is_alive()
