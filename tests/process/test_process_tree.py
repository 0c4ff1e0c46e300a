"""Descendants of a process are listed, killed and reaped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from areal_like.process import process_tree
from areal_like.process.process_tree import descendants_of, has_handler, process_info
from tests.support.commands import run_python

SLEEP = "import time; time.sleep(60)"


def test_all_descendants_are_killed_even_in_another_session():
    code = f"""
import os, subprocess, sys, time
from areal_like.process.process_tree import become_subreaper, descendants_of, kill_descendants
become_subreaper()
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", middle])
subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
assert len(descendants_of(os.getpid())) == 2, descendants_of(os.getpid())
assert kill_descendants() == []
assert descendants_of(os.getpid()) == []
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_orphans_of_the_named_process_are_killed():
    code = f"""
import os, subprocess, sys, time
from areal_like.process.process_tree import become_subreaper, descendants_of, kill_orphans
become_subreaper()
middle = '''
import subprocess, sys
command = [sys.executable, "-c", {SLEEP!r}]
print(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL).pid)
'''
pids = {{}}
for name in ("a/0", "b/0"):
    done = subprocess.run([sys.executable, "-c", middle], env={{**os.environ, "WHO": name}}, stdout=subprocess.PIPE)
    pids[name] = int(done.stdout)
kill_orphans(-1, {{"WHO": "a/0"}}, set())
def living():
    return [seen.pid for seen in descendants_of(os.getpid()) if seen.state != "Z"]
ends = time.monotonic() + 60
while len(living()) > 1 and time.monotonic() < ends:
    time.sleep(0.02)
left = living()
os.kill(pids["b/0"], 9)
assert left == [pids["b/0"]], (left, pids)
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_children_of_a_process_that_dies_during_the_kill_are_killed():
    """Children of a process that dies before they are listed become ours."""
    code = f"""
import os, subprocess, sys
from areal_like.process import process_tree
process_tree.become_subreaper()
middle = '''
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True).pid, flush=True)
time.sleep(60)
'''
env = {{**os.environ, "WHO": "a/0"}}
parent = subprocess.Popen([sys.executable, "-c", middle], env=env, stdout=subprocess.PIPE, text=True)
child = int(parent.stdout.readline())
look_below = process_tree.descendants_of
def below_the_dead(pid):
    if pid == parent.pid:
        process_tree.kill([pid])
        while process_tree.process_info(child).parent != os.getpid():
            pass
    return look_below(pid)
process_tree.descendants_of = below_the_dead
process_tree.kill_orphans(-1, {{"WHO": "a/0"}}, set())
assert process_tree.process_info(child) is None, process_tree.process_info(child)
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_handled_signal_is_recognized():
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    assert has_handler(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert not has_handler(os.getpid(), signal.SIGUSR2)
    assert not has_handler(1 << 22, signal.SIGUSR2)


def test_process_info_gives_the_parent_of_any_process():
    process = subprocess.Popen(["sleep", "60"])
    try:
        seen = process_info(process.pid)
        assert seen is not None and seen.parent == os.getpid()
        assert process.pid in [one.pid for one in descendants_of(os.getpid())]
    finally:
        process.kill()
        process.wait()
    assert process_info(1 << 22) is None


def test_a_process_that_ends_while_it_is_looked_at_has_no_threads(monkeypatch):
    """Its folder is gone, though its state was read a moment ago."""
    monkeypatch.setattr("os.listdir", vanished)
    with subprocess.Popen(["true"]) as process:
        wait_for_dead_main_thread(process.pid)
        assert process_tree.threads_of(process.pid) == [] and state(process.pid) == "Z"


def vanished(path):
    raise FileNotFoundError(2, "No such file or directory", str(path))


def test_a_process_whose_main_thread_alone_has_ended_is_no_zombie():
    """So is one that was killed while another thread hangs on a dead disk."""
    code = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # ends this thread
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            wait_for_dead_main_thread(process.pid, others=True)
            assert state(process.pid) == "S"
        finally:
            process.kill()
        wait_for_dead_main_thread(process.pid, others=False)
        assert state(process.pid) == "Z"


def wait_for_dead_main_thread(pid, others=None):
    while ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.01)
    while others is not None and others != (len(os.listdir(f"/proc/{pid}/task")) > 1):
        time.sleep(0.01)


def state(pid):
    info = process_info(pid)
    return info and info.state


def test_dead_orphans_are_reaped_and_known_children_are_not():
    code = f"""
import os, subprocess, sys, time
from areal_like.process.process_tree import become_subreaper, descendants_of, reap_orphans
become_subreaper()
reap_orphans(set())
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.2)'])"
subprocess.run([sys.executable, "-c", middle])
alive = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
until = time.monotonic() + 60
while len(descendants_of(os.getpid())) > 1 and time.monotonic() < until:
    reap_orphans({{alive.pid}})
    time.sleep(0.02)
assert [seen.pid for seen in descendants_of(os.getpid())] == [alive.pid]
alive.kill()
time.sleep(0.2)
reap_orphans({{alive.pid}})
assert alive.wait() == -9
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_cpu_time_is_that_of_a_process_with_its_descendants():
    code = f"""
import subprocess, sys, time
from areal_like.process.process_tree import cpu_seconds, descendants_of, kill
busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
children = {{name: subprocess.Popen([sys.executable, "-c", text]) for name, text in (("a", busy), ("b", {SLEEP!r}))}}
pids = {{name: child.pid for name, child in children.items()}}
until = time.monotonic() + 60
while (used := cpu_seconds(pids))["a"] < 0.3 and time.monotonic() < until:
    time.sleep(0.02)
kill(below.pid for below in descendants_of(pids["a"]))
for child in children.values():
    child.kill()
    child.wait()
assert used["a"] >= 0.3 > used["b"], used
assert cpu_seconds(pids) == {{"a": 0.0, "b": 0.0}}
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_has_become_another_users_does_not_keep_the_others_alive(monkeypatch):
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    kill = os.kill

    def refused(pid: int, sign: int) -> None:
        if pid == children[0].pid:
            raise PermissionError(1, "Operation not permitted")
        kill(pid, sign)

    monkeypatch.setattr(os, "kill", refused)
    process_tree.kill([each.pid for each in children])
    assert children[1].wait(60) == -9 and children[0].poll() is None
    monkeypatch.undo()
    process_tree.kill([children[0].pid])
    children[0].wait(60)


def test_processes_that_the_kernel_hides_are_none_of_the_run(monkeypatch):
    def hidden(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", hidden)
    assert process_tree.process_info(os.getpid()) is None
