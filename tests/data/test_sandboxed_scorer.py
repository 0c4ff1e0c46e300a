"""Scorers of reasoning-gym that evaluate answers run in the sandbox, where no answer reaches anything."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.sections.reward import SANDBOXES
from areal_like.data.tasks import sandboxed_scorer
from areal_like.data.tasks.evaluating_scorers import evaluating_puzzles
from areal_like.data.tasks.reasoning_gym import ReasoningGym
from areal_like.data.tasks.sandboxed_scorer import SandboxedScorer
from areal_like.process.errors import InfrastructureError
from areal_like.process.identity import TOKEN
from areal_like.process.sandbox.base import SandboxError
from areal_like.process.sandbox.sandbox import SANDBOX, Sandbox
from tests.support.sandboxes import require_sandbox

pytest.importorskip("reasoning_gym")
ARGUMENTS = {"size": 3, "seed": 1}
SECRET = "only-in-tests"
IMPORT = "__import__('{}')"
OS, SUBPROCESS, SIGNAL = IMPORT.format("os"), IMPORT.format("subprocess"), IMPORT.format("signal")
SOCKET = IMPORT.format("socket")
BY_ATTRIBUTES = (
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0].__init__.__globals__"
)
ESCAPES = {
    "writes a file": "open('{folder}/made', 'w').write('x')",
    "makes a folder, by parse_expr": f"{OS}.mkdir('{{folder}}/made')",
    "makes a folder, by a chain of attributes": f"{BY_ATTRIBUTES}['mkdir']('{{folder}}/made')",
    "reads a file": "1/0 if open('{folder}/secret').read() else 1",
    "runs a program": f"{SUBPROCESS}.run(['/bin/mkdir', '{{folder}}/made'])",
    "forks": f"[{OS}.fork() for _ in range(64)] and {OS}.mkdir('{{folder}}/made')",
    "connects": f"{SOCKET}.create_connection(('127.0.0.1', {{port}})).send(b'x')",
    "signals what started it": f"{OS}.kill({OS}.getppid(), {SIGNAL}.SIGKILL)",
    "signals everything": f"{OS}.kill(-1, {SIGNAL}.SIGKILL)",
    "answers for the next one": f"[{OS}.write(n, b'{{{{\"value\": 1}}}}\\n' * 9) for n in range(64)]",
    "changes the scorer": f"setattr({IMPORT.format('numpy')}, 'isclose', lambda *_, **__: False)",
    "writes without end": f"[{OS}.write(n, b'x' * 10**9) for n in range(3, 64)]",
    "is a long text": "1+" * 4000 + "1",
    "nests deeply": "(" * 4000 + "1" + ")" * 4000,
    "fills memory": "len(bytearray(10**11))",
    "ends its process": f"{OS}._exit(0)",
    "exits": "exit(3)",
}
BUSY = {"computes without end": "10**10**10", "loops": "[0 for _ in iter(int, 1)]"}
SLEEPS = f"{IMPORT.format('time')}.sleep(600)"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="areal-like-test-") as name:
        os.chmod(name, 0o777)
        (Path(name) / "secret").write_text(SECRET)
        yield Path(name)


def attack(texts: dict[str, str], kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    """Each text, were it read, is held and has no full marks, and the right answer has them afterwards."""
    require_sandbox(kind)
    monkeypatch.setattr(sandboxed_scorer, "readable", str)
    monkeypatch.setenv(SANDBOX, kind)
    monkeypatch.setenv(TOKEN, SECRET)
    puzzle = ReasoningGym("countdown", num_rows=ARGUMENTS["size"])._puzzles[0]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with closing(SandboxedScorer("countdown", ARGUMENTS, **limits)) as scorer:
            for what, text in texts.items():
                answer = text.format(folder=folder, port=listening.getsockname()[1]) if "{" in text else text
                try:
                    assert scorer.score(answer, puzzle) < 1, what
                except InfrastructureError as fault:  # of a machine under load
                    assert "for a processor" in str(fault), what
                assert scorer.score(puzzle["answer"], puzzle) == 1.0, f"after one that {what}"
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert os.listdir(folder) == ["secret"] and (folder / "secret").read_text() == SECRET


@pytest.mark.parametrize("kind", [SANDBOXES[0], pytest.param(SANDBOXES[1], marks=pytest.mark.slow)])
def test_an_answer_that_is_evaluated_is_held(kind, folder, monkeypatch):
    attack(ESCAPES, kind, folder, monkeypatch, wall_s=60)


def test_an_answer_cannot_write_its_own_score():
    """Its code would run in the process that reports the score."""
    require_sandbox(SANDBOXES[0])
    code = "import os\nfor n in range(65):\n try: os.write(n, b'{\"value\":1.0}')\n except OSError: pass\nos._exit(0)"
    answer = f"exec({IMPORT.format('binascii')}.unhexlify('{code.encode().hex()}'))"
    puzzle = ReasoningGym("countdown", num_rows=ARGUMENTS["size"])._puzzles[0]
    with closing(SandboxedScorer("countdown", ARGUMENTS)) as scorer:
        assert scorer.score(answer, puzzle) == scorer.score("?", puzzle) < 0.5
        assert scorer.score(puzzle["answer"], puzzle) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", SANDBOXES)
def test_an_answer_that_takes_too_long_is_a_0_and_the_next_one_is_scored(kind, folder, monkeypatch):
    attack(BUSY, kind, folder, monkeypatch, wall_s=60, cpu_s=1)
    attack({"sleeps": SLEEPS}, kind, folder, monkeypatch, wall_s=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(evaluating_puzzles()))
def test_right_answers_get_the_score_of_the_package(name):
    require_sandbox(SANDBOXES[0])
    task = ReasoningGym(name, num_rows=2)
    assert task._sandboxed is not None
    for number in range(2):
        assert task.reward("", task.row(number)["answer"], number) == {"graded": 1.0, "score": 1.0}
    task._sandboxed.close()


def test_an_answer_without_a_sandbox_is_an_error_of_infrastructure(monkeypatch):
    def missing(*_, **__):
        raise SandboxError("the sandbox is broken")

    monkeypatch.setattr(Sandbox, "__init__", missing)
    task = ReasoningGym("countdown", num_rows=1)
    task.prepare_reward()
    with pytest.raises(SandboxError, match="is broken"):
        task.reward("", "1+1", 0)
