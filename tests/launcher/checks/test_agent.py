"""What the program or function of an agent imports is found missing before any process starts."""

from pathlib import Path

import pytest

from areal_like.config.install_command import pip_command
from launcher.checks import agent
from tests.support.planning import plan_of

WORDS = ("workflow.name=agent",)


def needs(key: str, *words: str) -> list[str]:
    return [need.message for need in plan_of("grpo", *WORDS, *words).needs if need.key == key]


@pytest.fixture
def lacks(monkeypatch: pytest.MonkeyPatch):
    def lack(*modules: str) -> None:
        monkeypatch.setattr(agent, "is_missing_module", lambda module, folder: module in modules)

    return lack


def test_a_client_needs_its_package(tmp_path: Path, lacks) -> None:
    code = tmp_path / "solve.py"
    code.write_text("async def solve(row, *, client=None): ...\ndef plain(row): ...\n")
    assert needs("agent.function", f"agent.function={code}:solve") == []
    lacks("openai")
    (message,) = needs("agent.function", f"agent.function={code}:solve")
    assert message.startswith("solve takes a client") and message.endswith(f"{pip_command('openai')} installs it")
    assert needs("agent.function", f"agent.function={code}:plain") == []


def test_what_a_program_imports_first_must_be_here(tmp_path: Path, lacks) -> None:
    program = tmp_path / "program.py"
    program.write_text('"""Text."""\n\nimport json, no_such.thing\nfrom agents import Agent\nfrom beside import x\n')
    (tmp_path / "beside.py").touch()
    command = f"agent.command=[python, {program}]"
    (message,) = needs("agent.command", command)
    assert message.endswith("program.py imports no_such, which is not installed: install it for this Python")
    assert needs("agent.command", f"agent.command=[sh, {program}]") == []
    lacks("agents")
    (message,) = needs("agent.command", command)
    assert message.endswith(f"imports agents, which is not installed: {pip_command('openai-agents')} installs it")


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.path.insert(0, 'lib')\nimport no_such\n",
        "try:\n    import no_such\nexcept ImportError:\n    no_such = None\n",
        "def later():\n    import no_such\n",
    ],
)
def test_an_import_that_other_code_decides_is_left_to_the_run(tmp_path: Path, code: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(code)
    assert needs("agent.command", f"agent.command=[python, {program}]") == []
