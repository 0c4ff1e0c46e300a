"""Looking at processes, ending them, and what each is started with."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.identity import Identity
from areal_like.process.port_lease import lease_port
from areal_like.process.process_tree import descendants_of, has_handler, process_info
from launcher.agent.managed_process import log_name
from launcher.runs.checkpoints import move_aside_after, newest_resumable
from launcher.runs.env_file import read_env_files
from tests.support.commands import REPOSITORY

SLEEP = "import time; time.sleep(60)"


def in_a_process(code, **more):
    """Subreapers and guardians are processes, and a test's own must stay as it is."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=False, **more
    )


def test_all_descendants_end_also_those_that_left_their_session():
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
    done = in_a_process(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_leftovers_of_one_process_are_ended_and_those_of_others_are_not():
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
    done = in_a_process(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_falls_to_the_launcher_while_it_ends_leftovers_goes_too():
    """A process that dies before it is asked for its children has left them to us."""
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
    done = in_a_process(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("work", "code"), [("return 7", 7), ("raise KeyboardInterrupt", 130), ("sys.exit(3)", 3)])
def test_a_guardian_returns_what_the_launcher_does_and_clears_the_memory(work, code, tmp_path):
    text = f"""
import pathlib, sys
from launcher.supervisor.guardian import run_guarded
memory = pathlib.Path({str(tmp_path / "memory")!r})
def launch():
    assert memory.stat().st_mode == 0o40700
    (memory / "weights").touch()
    print("launched", flush=True)
    {work}
print("before")
code = run_guarded(launch, memory)
assert not memory.exists()
sys.exit(code)
"""
    done = in_a_process(text)
    assert (done.returncode, done.stdout, done.stderr) == (code, "before\nlaunched\n", "")


def test_a_guardian_tells_of_a_launcher_that_fell():
    done = in_a_process(
        "import pathlib, sys\nfrom launcher.supervisor.guardian import run_guarded\n"
        "sys.exit(run_guarded(lambda: 1 // 0, pathlib.Path('/dev/shm/areal-like.none')))"
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_which_signals_a_process_has_a_handler_for():
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    assert has_handler(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert not has_handler(os.getpid(), signal.SIGUSR2)
    assert not has_handler(1 << 22, signal.SIGUSR2)


def test_a_process_is_seen_with_its_parent_whatever_its_name():
    process = subprocess.Popen(["sleep", "60"])
    try:
        seen = process_info(process.pid)
        assert seen is not None and seen.parent == os.getpid()
        assert process.pid in [one.pid for one in descendants_of(os.getpid())]
    finally:
        process.kill()
        process.wait()
    assert process_info(1 << 22) is None


def test_a_leased_port_is_free_and_nobody_is_given_it_twice():
    leases = [lease_port() for _ in range(20)]
    assert len({one.port for one in leases}) == 20
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", leases[0].port))
    for one in leases:
        one.close()


@pytest.mark.parametrize(
    ("me", "name"),
    [
        (Identity("trainer", 0), "trainer-0.log"),
        (Identity("trainer", 0, attempt=2), "trainer-0.attempt-2.log"),
        (Identity("server", 1, incarnation=3), "server-1.restart-3.log"),
        (Identity("server", 1, attempt=2, incarnation=2), "server-1.attempt-2.restart-2.log"),
    ],
)
def test_every_start_has_a_log_of_its_own(me, name):
    assert log_name(me) == name


def test_variables_from_files(tmp_path):
    (tmp_path / "a.env").write_text("# keys\nHF_TOKEN=abc\nexport NAME = 'x y'\n\nURL=http://a/b#c # mine\n")
    (tmp_path / "b.env").write_text('HF_TOKEN="def"\n')
    assert read_env_files(["a.env", "b.env"], tmp_path) == {"HF_TOKEN": "def", "NAME": "x y", "URL": "http://a/b#c"}


def test_a_line_that_is_none_is_named_by_its_number_and_never_shown(tmp_path):
    (tmp_path / "a.env").write_text("A=1\nsk-secretsecret\n")
    with pytest.raises(ConfigError) as caught:
        read_env_files(["a.env"], tmp_path)
    assert "a.env:2" in caught.value.text()
    assert "secretsecret" not in caught.value.text()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"A=\xff\xfe"), "is not UTF-8 text"),
    ],
    ids=["folder", "bytes"],
)
def test_a_file_of_variables_that_cannot_be_read_is_named_with_its_key(tmp_path, make, message):
    make(tmp_path / "a.env")
    with pytest.raises(ConfigError) as caught:
        read_env_files(["a.env"], tmp_path)
    assert caught.value.text().startswith("launcher.env_file: a.env ") and message in caught.value.text()


def test_dead_orphans_are_reaped_and_known_children_are_left():
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
    done = in_a_process(code)
    assert (done.returncode, done.stderr) == (0, "")


def checkpoint(run, step, size=3, resume=True):
    folder = run / "checkpoints" / f"step_{step:06d}"
    (folder / "resume").mkdir(parents=True)
    (folder / "model").write_text("123")
    parts = {"model": size, "resume/trainer.json": 2} if resume else {"model": size}
    message = {"parts": {name: {"bytes": bytes, "hash": ""} for name, bytes in parts.items()}}
    (folder / "manifest.json").write_text(json.dumps(message))
    (folder / "resume" / "trainer.json").write_text("{}")
    (folder / ".complete").touch()
    return folder


def test_the_newest_checkpoint_that_is_whole_and_can_be_resumed(tmp_path):
    assert newest_resumable(tmp_path) is None
    good = checkpoint(tmp_path, 20)
    checkpoint(tmp_path, 9)
    checkpoint(tmp_path, 30, size=4)
    checkpoint(tmp_path, 40, resume=False)
    (checkpoint(tmp_path, 50) / ".complete").unlink()
    (checkpoint(tmp_path, 60) / "manifest.json").write_text("{")
    (checkpoint(tmp_path, 70) / "model").unlink()
    assert newest_resumable(tmp_path) == (20, good)


def test_checkpoints_of_a_life_that_is_over_are_kept_out_of_the_way(tmp_path):
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    moved = move_aside_after(tmp_path, 10, attempt=2)
    assert [path.name for path in moved] == ["step_000020", "step_000030"]
    assert newest_resumable(tmp_path) is not None
    assert (tmp_path / "checkpoints" / "before-attempt-2" / "step_000030" / "model").read_text() == "123"
    assert move_aside_after(tmp_path, 10, attempt=3) == []
    assert move_aside_after(tmp_path / "none", 0, attempt=2) == []
