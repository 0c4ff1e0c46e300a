"""A process ends with an exit code and a failure note."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from tests.support.commands import REPOSITORY


def test_the_limit_of_open_files_is_raised_to_its_maximum():
    code = (
        "import resource as r; from areal_like.process.entrypoint import raise_open_files_limit; "
        "hard = r.getrlimit(7)[1]; r.setrlimit(7, (64, hard)); raise_open_files_limit(); "
        "print(r.getrlimit(7)[0] > 64, r.getrlimit(7)[1] == hard)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True"], done.stderr


class TestRunProcess:
    def run(
        self, folder: Path, text: str, schema: str | None = None, *overrides: str
    ) -> tuple[int, str, dict[str, object] | None]:
        """`schema`: the text of `mine.py`, whose class `Mine` has the key `mine.answer`."""
        from areal_like.config.load import load

        loaded = load("grpo.yaml", [f"cluster.fileroot={folder}", *overrides])
        facts = {"experiment": "grpo", "run_id": "abc", "folder": str(folder), "cwd": str(folder)}
        own = {}
        if schema is not None:
            (folder / "mine.py").write_text(textwrap.dedent(schema))
            facts["schema"], own = "mine.py:Mine", {"mine": {"answer": 42}}
        (folder / "config.yaml").write_text(yaml.safe_dump({**loaded.values, **own}))
        (folder / "run.json").write_text(json.dumps(facts))
        (folder / "main.py").write_text(
            "from areal_like.process.entrypoint import end_process, run_process\n"
            + textwrap.dedent(text)
            + "\nend_process(run_process(main))\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "AREAL_LIKE_PROCESS": "episodes/1"}
        command = [sys.executable, str(folder / "main.py"), "--run-dir", str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        note = folder / "logs" / "episodes-1.failure.json"
        return done.returncode, done.stderr, json.loads(note.read_text()) if note.exists() else None

    def test_a_process_reads_its_run_and_exits_with_mains_code(self, tmp_path):
        code, err, note = self.run(
            tmp_path,
            """
            import sys
            def main(run, me):
                assert run.config.gconfig.n_samples == 8 and not run.is_synchronous
                assert (me.name, me.attempt) == ("episodes/1", 1)
                assert not {"torch", "hydra"} & set(sys.modules)
                return 75
            """,
        )
        assert (code, err, note) == (75, "", None)

    def test_a_process_has_the_keys_of_the_users_own_class(self, tmp_path):
        main = "def main(run, me):\n    return run.config.mine.answer"
        schema = """
            from areal_like.config.experiment import GRPOConfig
            from areal_like.config.fields import config, key, section

            @config
            class Own:
                answer: int = key(1)

            @config
            class Mine(GRPOConfig):
                mine: Own = section(Own)
            """
        assert self.run(tmp_path, main, schema)[0] == 42
        code, err, note = self.run(tmp_path, main, "Mine = 1 / 0")
        assert code == 2 and note and note["kind"] == "config" and "mine.py cannot be imported: ZeroDivision" in err

    def test_a_failure_has_a_message_and_no_traceback(self, tmp_path):
        code, err, note = self.run(
            tmp_path,
            """
            from areal_like.process.errors import Failure
            def main(run, me):
                raise Failure("reward.name: raised 64 times in a row")
            """,
        )
        assert code == 1 and note is not None and "Traceback" not in err
        assert note["message"] == "reward.name: raised 64 times in a row"

    def test_a_configuration_error_found_late_is_exit_code_2(self, tmp_path):
        code, err, note = self.run(
            tmp_path,
            """
            from areal_like.config.problems import ConfigError, Problem
            def main(run, me):
                raise ConfigError([Problem("task.name", "my.py cannot be imported")])
            """,
        )
        assert code == 2 and note is not None and "Traceback" not in err
        assert note == {"time": note["time"], "message": "task.name: my.py cannot be imported", "kind": "config"}

    @pytest.mark.parametrize(("fails", "code"), [(False, 75), (True, 1)])
    def test_a_process_ends_although_threads_of_user_code_do_not(self, tmp_path, fails, code):
        main = f"""
            import asyncio, threading
            from areal_like.process import loop_threads
            from areal_like.process.errors import Failure
            from areal_like.process.http import run_async
            loop_threads.END_S = 0.2
            def main(run, me):
                hangs = threading.Event().wait
                threading.Thread(target=hangs).start()
                async def work():
                    task = asyncio.create_task(asyncio.to_thread(hangs))
                    await asyncio.sleep(0.1)
                    if {fails}:
                        raise Failure("it failed")
                    return 75
                return run_async(work())
            """
        ended, _, note = self.run(tmp_path, main)
        assert ended == code and (note is not None) is fails

    def test_blocking_calls_that_end_soon_are_waited_for(self, tmp_path):
        main = """
            import asyncio, time
            from pathlib import Path
            from areal_like.process.http import run_async
            def write(path):
                time.sleep(0.3)
                path.write_text("done")
            def main(run, me):
                async def work():
                    task = asyncio.create_task(asyncio.to_thread(write, run.directory / "file"))
                    await asyncio.sleep(0.1)
                run_async(work())
            """
        assert self.run(tmp_path, main)[0] == 0
        assert (tmp_path / "file").read_text() == "done"

    def test_a_process_that_gets_sigusr2_writes_its_stacks(self, tmp_path):
        main = "import os, signal\ndef main(run, me):\n    os.kill(os.getpid(), signal.SIGUSR2)"
        assert self.run(tmp_path, main)[0] == 0
        assert "in main" in (tmp_path / "logs" / "episodes-1.stacks").read_text()

    def test_an_unexpected_error_leaves_its_traceback_in_the_log(self, tmp_path):
        code, err, note = self.run(tmp_path, "def main(run, me):\n    return 1 // 0")
        assert code == 1 and note is not None and "Traceback" in err
        assert note["message"] == "ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.shows("log.level")
@pytest.mark.parametrize(
    ("level", "heard"),
    [("debug", ["detail", "fact", "danger"]), ("info", ["fact", "danger"]), ("error", [])],
)
def test_a_process_logs_from_the_level_of_its_run(tmp_path: Path, level: str, heard: list[str]) -> None:
    main = """
        import logging
        def main(run, me):
            log = logging.getLogger("any")
            log.debug("detail"), log.info("fact"), log.warning("danger")
        """
    code, err, _ = TestRunProcess().run(tmp_path, main, None, f"log.level={level}")
    assert (code, [line.split()[-1] for line in err.splitlines()]) == (0, heard)
