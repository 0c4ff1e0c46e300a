"""A run whose processes find each other in a real etcd, which is killed or stopped in the middle."""

import os
import shutil
import signal

import pytest

from areal_like.discovery.etcd import EtcdNameStore
from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, left_behind, running, warnings_in
from tests.support.etcd_server import etcd_servers, section_of

pytestmark = pytest.mark.xdist_group("ring-1")

SHAPE = (
    "rollout.backend=embedded:d2",
    "actor.backend=fsdp:d2",
    "evaluator.freq_steps=null",
    "total_train_steps=4",
    "n_samples=2",
)


@pytest.mark.slow
def test_no_step_and_no_process_is_lost_when_etcd_is_killed_and_restarted(tmp_path):
    with etcd_servers(tmp_path / "etcd") as (etcd,):
        names = ("cluster.name_resolve.type=etcd3", f"cluster.name_resolve.etcd3_addr={etcd.address}")
        with running(tmp_path, *SHORT, *SHAPE, *names, "cluster.name_resolve.ttl_s=2") as going:
            going.wait_for_step(1)
            before = going.pids()
            going.wait_for_entries({"launcher/0", "rollout/0", "server/0", "server/1"})
            etcd.kill()
            going.wait_for_step(2)
            etcd.again()
            going.wait_for_step(3)
            assert going.pids().items() <= before.items(), "no process was started again"
            ended = going.wait()
        with EtcdNameStore(section_of([etcd]), tmp_path, "", "test/0") as left:
            assert left.find() == {}
    assert ended.code == 0 and ended.summary["attempts"] == 1, ended.text
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line] == [1, 2, 3, 4]
    assert warnings_in(ended.out) == [] and audit(ended.ledger(), 4) == []
    assert {path.name for path in (ended.directory / "logs").glob("server-*.log")} == {"server-0.log", "server-1.log"}
    assert left_behind(ended.directory, set()) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_stopped_server_is_replaced_alone_although_its_entry_ends_long_before(tmp_path):
    phases = ("generating", "serving", "updating", "waiting")
    limits = ("rollout.setup_timeout=90", "watchdog.notice_s=5", *(f"watchdog.{phase}_s=150" for phase in phases))
    with etcd_servers(tmp_path / "etcd") as (etcd,):
        names = ("cluster.name_resolve.type=etcd3", f"cluster.name_resolve.etcd3_addr={etcd.address}")
        words = ("evaluator.freq_steps=null", "total_train_steps=12", "cluster.name_resolve.ttl_s=2")
        with running(tmp_path, *SHORT, *words, *names, *limits) as going:
            going.wait_for_step(4, limit_s=1800)
            for pid in going.pids("server"):
                os.kill(pid, signal.SIGSTOP)
            going.wait_for_text("server/0 ready", times=2, limit_s=1800)
            ended = going.wait(1800)
    assert ended.code == 0 and ended.summary["attempts"] == 1, ended.text
    failed = [line for line in ended.out.splitlines() if " failed (" in line]
    assert len(failed) == 1 and failed[0].startswith("server/0 failed (killed by signal 9 (SIGKILL))"), ended.text
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line] == list(range(1, 13))
    assert audit(ended.ledger(), 4) == []


STEPS = 60
"""So many that the run has not ended on a quick machine before all that happens to it has happened."""
ONE = (*SHORT, "evaluator.freq_steps=null", f"total_train_steps={STEPS}", "rollout.setup_timeout=1500")
ENTERED = {"launcher/0", "rollout/0", "server/0"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fate", ["stopped for good", "started again without its data"])
def test_a_run_completes_whose_etcd_is_gone_for_good(fate, tmp_path):
    with etcd_servers(tmp_path / "etcd") as (etcd,):
        names = ("cluster.name_resolve.type=etcd3", f"cluster.name_resolve.etcd3_addr={etcd.address}")
        with running(tmp_path, *ONE, *names, "cluster.name_resolve.ttl_s=2") as going:
            going.wait_for_step(2, limit_s=1800)
            before = going.pids()
            if fate == "stopped for good":
                assert etcd.process is not None
                os.kill(etcd.process.pid, signal.SIGSTOP)
                going.wait_for_step(8, limit_s=1800)
                assert {name for name in before.values() if not name.startswith("episodes")} <= {*going.pids().values()}
            else:
                etcd.kill()
                shutil.rmtree(etcd.folder / "data")
                etcd.again()
                going.wait_for_entries(ENTERED)
                going.kill("server")
                going.wait_for_text("server/0 ready", times=2, limit_s=1800)
            ended = going.wait(1800)
    assert ended.code == 0 and ended.summary["attempts"] == 1, ended.text
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line] == list(range(1, STEPS + 1))
    assert audit(ended.ledger(), 4) == []
    assert left_behind(ended.directory, set()) == []
