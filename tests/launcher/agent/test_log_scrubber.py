"""No log keeps a secret that a program or library has written to it directly."""

import os
import time
from pathlib import Path

from areal_like.process.identity import Identity
from launcher.agent import local, log_scrubber
from launcher.agent.log_scrubber import LogScrubber
from launcher.plan.plan import Process
from tests.ring.server import make_run


def test_secrets_are_covered_wherever_reads_cut_them(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_scrubber, "CHUNK", 3)
    path = tmp_path / "log"
    scrubber = LogScrubber(str(path), ["key-one", "key-two-is-longer"])
    with path.open("ab", 0) as log:
        for part in ("a key-o", "ne and ", "key-two-is-longer", "key-onekey-one b"):
            log.write(part.encode())
            scrubber.scrub()
    assert path.read_text() == f"a {'*' * 7} and {'*' * 31} b"


def test_a_rotated_log_has_no_secrets_either(tmp_path: Path) -> None:
    path, older = tmp_path / "log", tmp_path / "log.1"
    path.write_text("much " * 10)
    scrubber = LogScrubber(str(path), ["key-one"])
    scrubber.scrub()
    older.write_text("and key-one")  # which was written just before the copy
    path.write_text("key-one")
    scrubber.rotated(str(older))
    scrubber.scrub()
    assert (older.read_text(), path.read_text()) == ("and *******", "*******")


def test_what_a_program_prints_that_a_process_has_started_keeps_no_key(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "of-the-environment")
    run = make_run(tmp_path / "run")
    log = run.directory / "logs" / "server-0.log"
    log.parent.mkdir()
    agent = local.LocalAgent(run, "the-token", write_logs=True, hidden=["of-the-configuration"])
    words = "env; echo the-token of-the-configuration; kill -9 $$"
    agent.start(Process("server", 0, 0, (), (), 1, ("sh", "-c", words), {}, str(log)), Identity("server", 0))
    while not (exits := agent.exits()):
        time.sleep(0.01)
    agent.close()
    content = log.read_text()
    assert f"SERVICE_API_KEY={'*' * 18}" in content and f"{'*' * 9} {'*' * 20}" in content
    assert os.environ["SERVICE_API_KEY"] not in content + "".join(exits[0].last_lines)
