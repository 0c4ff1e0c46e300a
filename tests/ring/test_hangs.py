"""A process that stops without ending is named and killed, and the run completes."""

import os
import pwd
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from areal_like.process.process_tree import cpu_seconds_of, descendants_of
from areal_like.rollout.audit import audit
from tests.chaos.surroundings import HURTING
from tests.ring.start import SHORT, running, wait_until_gone
from tests.support.engine_environments import require_engine

pytestmark = pytest.mark.xdist_group("ring-2")

PHASES = ("generating", "serving", "updating", "step", "collective", "publishing", "saving", "waiting")
LIMITS = ("watchdog.notice_s=2", *(f"watchdog.{phase}_s=5" for phase in PHASES))


PATIENT = ("watchdog.notice_s=5", *(f"watchdog.{phase}_s=20" for phase in PHASES), "rollout.setup_timeout=1500")
"""For runs of which a busy machine makes many processes wait."""


def trained_steps(ended):
    return [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]


def headlines(ended):
    """What was said of processes that failed."""
    return [line for line in ended.out.splitlines() if re.match(r"\w+/\d+ failed \(", line)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_ranks_the_stopped_one_is_named_and_not_the_one_that_waits_for_it(rank, tmp_path):
    words = (*SHORT, *PATIENT, "actor.backend=fsdp:d2", "total_train_steps=12", "evaluator.freq_steps=null")
    with running(tmp_path, *words) as ring:
        ring.wait_for_step(4, limit_s=1800)
        for pid in ring.pids(f"trainer/{rank}"):
            os.kill(pid, signal.SIGSTOP)
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith(f"trainer/{rank} failed (killed by signal 9 (SIGKILL))"), ended.text
    assert f"trainer/{rank} has made no progress for" in headline and "(stopped by a signal)" in headline
    assert "attempt 2 resumes from step" in headline
    assert "gloo" not in ended.out.lower()
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []
    assert wait_until_gone(ended.directory) == {}


LOSS = """
import os
import threading
from pathlib import Path

FILE = Path(__file__).parent / "hangs"


def loss(logprobs, old_logprobs, advantages, weights):
    if os.environ["RANK"] == "1" and FILE.exists():
        kind = FILE.read_text()
        FILE.unlink()
        while kind == "computes":
            pass
        threading.Event().wait()
    return -(advantages * (logprobs - old_logprobs).exp() * weights).sum()
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["computes", "waits"])
def test_of_two_ranks_the_one_whose_loss_does_not_end_is_named_and_not_the_one_that_waits_in_its_passes(kind, tmp_path):
    (tmp_path / "own.py").write_text(LOSS)
    words = [each for each in PATIENT if kind == "waits" or not each.startswith("watchdog.step_s=")]
    words += ["actor.loss=own.py:loss", "actor.dist_timeout_s=100", "actor.backend=fsdp:d2"]
    with running(tmp_path, *SHORT, *words, "total_train_steps=12", "evaluator.freq_steps=null") as ring:
        ring.wait_for_step(4, limit_s=1800)
        (tmp_path / "hangs").write_text(kind)
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith("trainer/1 failed (killed by signal 9 (SIGKILL))"), ended.text
    assert "while in a training step" in headline and ("(it computes)" in headline) is (kind == "computes")
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("engine", "whom"),
    [
        pytest.param(engine, whom, marks=pytest.mark.xdist_group(engine))
        for engine, whom in (("vllm", "one"), ("sglang", "all"))
    ],
)
def test_a_stopped_engine_is_replaced_with_its_server_and_nobody_else(engine, whom, tmp_path):
    """All of its processes, or the one that computes."""
    found = f"{engine}.python={require_engine(engine)}"
    words = (*SHORT, *PATIENT, "watchdog.loading_s=1500", "total_train_steps=12", "evaluator.freq_steps=null")
    with running(tmp_path, f"rollout={engine}", found, *words) as ring:
        ring.wait_for_step(2, limit_s=1800)
        of_launcher = [each.pid for each in descendants_of(ring.launcher()) if each.parent == ring.launcher()]
        (server,) = ring.pids("server").keys() & of_launcher
        others = {pid for pid in ring.pids() if ring.pids()[pid].startswith(("trainer", "rollout"))}
        below = [each.pid for each in descendants_of(server) if not is_keeper_or_tracker(each.pid)]
        for pid in below if whom == "all" else [max(below, key=cpu_seconds_of)]:
            os.kill(pid, signal.SIGSTOP)
        ring.wait_for_text("server/0 ready", times=2, limit_s=1800)
        assert others <= set(ring.pids()), "trainer and controller stay"
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith("server/0 failed (killed by signal 9 (SIGKILL))"), ended.text
    assert "server/0 has made no progress for" in headline and "it is replaced (incarnation 2)" in headline
    assert ended.summary["attempts"] == 1
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []
    assert wait_until_gone(ended.directory) == {}


def is_keeper_or_tracker(pid):
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"process.keeper" in command or b"resource_tracker" in command


def found_py_spy():
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if (program := shutil.which("py-spy", path=beside)) is None:
        pytest.skip("py-spy is not installed")
    return program


READS = "+dac_read_search"
"""So that another user can read this Python, which may be in a home folder."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_unprivileged_user_gets_the_stacks_of_all_processes(tmp_path):
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, with setpriv")
    nobody = pwd.getpwnam("nobody")
    prefix = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--no-new-privs"]
    prefix += ["--bounding-set=-all,+dac_read_search", f"--inh-caps=-all,{READS}", f"--ambient-caps=-all,{READS}"]
    words = (*SHORT, *PATIENT, "total_train_steps=12", "evaluator.freq_steps=null")
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o711)
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        programs = Path(home) / "programs"  # where another user may run them
        programs.mkdir()
        shutil.copy(found_py_spy(), programs)
        path = f"{programs}{os.pathsep}{os.defpath}"
        with running(Path(home), *words, prefix=prefix, HOME=home, PATH=path) as ring:
            ring.wait_for_step(2, limit_s=1800)
            for pid in ring.pids("trainer"):
                assert Path(f"/proc/{pid}").stat().st_uid == nobody.pw_uid
                os.kill(pid, signal.SIGSTOP)
            ended = ring.wait(1800)
        assert ended.code == 0 and ended.summary["attempts"] == 2, ended.text
        reports = {path.stem: path.read_text() for path in (ended.directory / "logs" / "hang-1").iterdir()}
    assert {*reports} == {"culprit", "server-0", "rollout-0", "episodes-0", "trainer-0"}
    assert "trainer/0 has made no progress for" in reports.pop("culprit")
    stopped = reports.pop("trainer-0")
    assert all("Thread 0x" in report for report in reports.values()), "these write their own"
    assert "state T" in stopped and "thread" in stopped, "from /proc"
    assert "MainThread" in stopped and "training/loop.py" in stopped


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attempts"), [("server", 1), ("trainer", 2)])
def test_a_run_survives_a_process_that_is_stopped(name, attempts, tmp_path):
    with running(tmp_path, *SHORT, *LIMITS, "total_train_steps=24", "evaluator.freq_steps=null") as ring:
        ring.wait_for_step(2)
        for pid, process in ring.pids(name).items():
            assert process.startswith(name)
            os.kill(pid, signal.SIGSTOP)
        ended = ring.wait()
    assert ended.code == 0, ended.text
    assert f"{name}/0 has made no progress for" in ended.out and "(stopped by a signal)" in ended.out, ended.text
    assert ended.summary["attempts"] == attempts, ended.text
    lines = [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert lines == list(range(1, 25))
    assert audit(ended.ledger(), 2) == []
    assert (ended.directory / "logs" / "hang-1" / f"{name}-0.txt").is_file()
    assert "Thread 0x" in (ended.directory / "logs" / "hang-1" / "rollout-0.txt").read_text(), "it runs and can tell"
    assert wait_until_gone(ended.directory) == {}


IMPATIENT = ("watchdog.notice_s=5", *(f"watchdog.{phase}_s=150" for phase in PHASES), "rollout.setup_timeout=90")
"""As by default: what limits a start is less than what limits a hang."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_by_default_a_stopped_server_is_named_after_a_minute_and_replaced_after_five(tmp_path):
    with running(tmp_path, *SHORT, "total_train_steps=24", "evaluator.freq_steps=null") as ring:
        ring.wait_for_step(2)
        others = {pid for pid, name in ring.pids().items() if name.startswith(("trainer", "rollout"))}
        began = time.monotonic()
        for pid in ring.pids("server"):
            os.kill(pid, signal.SIGSTOP)
        ring.wait_for_text("server/0 has made no progress for 6", limit_s=120)
        named_s = time.monotonic() - began
        ring.wait_for_text("server/0 ready", times=2, limit_s=600)
        assert others <= set(ring.pids()), "trainer and controller stay"
        ended = ring.wait(600)
    assert ended.code == 0 and named_s > 55, ended.text
    assert "it is killed after 300 s (watchdog." in ended.out
    (headline,) = headlines(ended)
    assert re.match(r"server/0 failed \(killed by signal 9 \(SIGKILL\)\) after 3\d\d s", headline), headline
    assert ended.summary["attempts"] == 1 and trained_steps(ended) == list(range(1, 25))
    assert wait_until_gone(ended.directory) == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_of_a_stopped_controller_nobody_who_waits_for_it_fails_first(tmp_path):
    words = (*SHORT, *IMPATIENT, "total_train_steps=12", "evaluator.freq_steps=null")
    with running(tmp_path, *words) as ring:
        ring.wait_for_step(4, limit_s=1800)
        for pid in ring.pids("rollout"):
            os.kill(pid, signal.SIGSTOP)
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith("rollout/0 failed (killed by signal 9 (SIGKILL))"), ended.text
    assert "rollout/0 has made no progress for" in headline and ended.summary["attempts"] == 2
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []
    assert (ended.directory / "logs" / "hang-1" / "rollout-0.txt").is_file(), ended.text
    assert wait_until_gone(ended.directory) == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("fault", "doing", "limit"),
    [
        ("hang in an update", "updating its weights", "watchdog.updating_s"),
        ("hang in generate", "generating", "watchdog.generating_s"),
    ],
)
def test_a_server_whose_engine_hangs_is_replaced_and_nobody_else(fault, doing, limit, tmp_path):
    words = (*SHORT, *PATIENT, "total_train_steps=12", "evaluator.freq_steps=null", "rollout.backend=plain")
    (told := tmp_path / "engine").write_text("")
    with running(tmp_path, *words, "--schema", f"{HURTING}:PlainGRPOConfig", CHAOS_ENGINE=str(told)) as ring:
        ring.wait_for_step(2, limit_s=1800)
        told.write_text(fault)
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith("server/0 failed (killed by signal 9 (SIGKILL))"), ended.text
    assert "server/0 has made no progress for" in headline and f"while {doing}" in headline
    assert "it is replaced (incarnation 2)" in headline and ended.summary["attempts"] == 1
    logs = ended.directory / "logs"
    assert f"server/0 is killed: {limit}" in (logs / "hangs.log").read_text()
    assert f"{doing.split()[0]}, " in (logs / "hang-1" / "server-0.txt").read_text()
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []
    assert wait_until_gone(ended.directory) == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("ahead", "stops"), [(0, False), (0, True), (2, False), (2, True)])
def test_a_server_that_hangs_fails_no_group_though_requests_end_long_before_it_is_killed(ahead, stops, tmp_path):
    """Its event loop answers, or all of it is stopped. 16 groups in a row that fail twice would end the run."""
    words = [*SHORT, "watchdog.notice_s=5", *(f"watchdog.{phase}_s=80" for phase in PHASES), "rollout.backend=plain"]
    words += ["rollout.request_timeout=8", "rollout.request_retries=1", "reward.timeout_s=8"]
    words += ["total_train_steps=12", "evaluator.freq_steps=null", f"max_head_offpolicyness={ahead}"]
    (told := tmp_path / "engine").write_text("")
    with running(tmp_path, *words, "--schema", f"{HURTING}:PlainGRPOConfig", CHAOS_ENGINE=str(told)) as ring:
        ring.wait_for_step(2, limit_s=1800)
        told.write_text("hang in all requests")
        ring.wait_for_text("server/0 has made no progress for", limit_s=120)
        for pid in ring.pids("server") if stops else ():
            os.kill(pid, signal.SIGSTOP)
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith("server/0 failed (killed by signal 9 (SIGKILL))"), ended.text
    assert ended.summary["attempts"] == 1
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), ahead) == []
    again = [each for each in ended.ledger() if each["event"] == "requeued" and "answers nobody" in each["why"]]
    assert len(again) > 2, "groups were tried for as long as it took"
