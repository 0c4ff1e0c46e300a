"""No log keeps a secret that a program or library has written to it directly."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from areal_like.process.identity import Identity
from launcher.agent import local, log_scrubber
from launcher.agent.base import ProcessExit
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


def run_to_its_end(tmp_path: Path, *command: str, hidden: Iterable[str] = ()) -> tuple[str, ProcessExit]:
    """What stands in the log of this process, and how it ended."""
    run = make_run(tmp_path / "run")
    log = run.directory / "logs" / "server-0.log"
    log.parent.mkdir()
    agent = local.LocalAgent(run, "the-token", write_logs=True, hidden=hidden)
    agent.start(Process("server", 0, 0, (), (), 1, command, {}, str(log)), Identity("server", 0))
    while not (exits := agent.exits()):
        time.sleep(0.01)
    agent.close()
    return log.read_text(), exits[0]


def test_what_a_program_prints_that_a_process_has_started_keeps_no_key(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "of-the-environment")
    words = "env; echo the-token of-the-configuration; kill -9 $$"
    content, ended = run_to_its_end(tmp_path, "sh", "-c", words, hidden=["of-the-configuration"])
    assert f"SERVICE_API_KEY={'*' * 18}" in content and f"{'*' * 9} {'*' * 20}" in content
    assert os.environ["SERVICE_API_KEY"] not in content + "".join(ended.last_lines)


def test_a_key_of_several_lines_does_not_stay_however_it_is_printed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "planted of the\nplanted \\ environment\nplanted 'by' \"it\"")
    code = "import json, os; e = dict(os.environ); print('as Python', e, 'as JSON', json.dumps(e)); os.system('env')"
    content, ended = run_to_its_end(tmp_path, sys.executable, "-c", f"{code}; raise SystemExit(f'{{e}}')")
    assert content.count("SERVICE_API_KEY") == 4 and "as JSON" in content
    assert "planted" not in content + "".join(ended.last_lines)
