"""The section `agent`: what cannot be run is refused where it is composed."""

from pathlib import Path

import pytest

from areal_like.config.checks.no_effect import no_effect_problems
from areal_like.config.load import load
from areal_like.config.problems import ConfigError

FILE = "experiment_name: e\nactor: {path: m}\nworkflow: {name: agent}\n"
CODE = """
def solve(row, client=None): ...
async def needs(row, model, *, tools): ...
"""


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("agent.sampling=request", "agent.command", "is empty, and the workflow agent has nothing to run"),
        ("agent.command=[python, no.py]", "agent.command", "there is no file no.py"),
        ("agent.command='python solver.py'", "agent.command", "is not a list; write [python,solver.py]"),
        ("agent.command=['python solver.py --fast']", "agent.command", "write [python,solver.py,--fast]"),
        ("agent.function=no.py:solve", "agent.function", "there is no file no.py"),
        ("agent.function=solve", "agent.function", "'solve' is not a valid name"),
        ("agent.function=agent.py:needs", "agent.function", "needs model, tools, but a function gets row, base_url"),
        ("agent.function=agent.py:sovle", "agent.function", "has no sovle; did you mean solve?"),
        ("agent={command: [python], function: 'agent.py:solve'}", "agent.function", "is set beside agent.command"),
        ("agent={command: [python], call_start: ''}", "agent.call_start", "is empty"),
        ("agent={command: [python], turn_discount: 1.5}", "agent.turn_discount", "1.5"),
        ("agent={command: [python], reward_from: none}", "agent.reward_from", "answer, result, posted"),
        ("+workflow.args.command=[python]", "workflow.args.command", "agent takes no such argument"),
    ],
)
def test_what_an_agent_cannot_run_is_refused(tmp_path: Path, override: str, key: str, message: str) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    (tmp_path / "agent.py").write_text(CODE)
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "e.yaml", [override])
    assert message in next(each.message for each in raised.value.problems if each.key == key)


def test_a_function_and_a_command_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    (tmp_path / "agent.py").write_text(CODE)
    load(tmp_path / "e.yaml", ["agent.function=agent.py:solve"])
    load(tmp_path / "e.yaml", ["agent.command=[python, agent.py, --fast]"])


def test_settings_of_an_agent_that_nothing_runs_are_reported(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE.replace("agent}", "single_turn}"))
    loaded = load(tmp_path / "e.yaml", ["agent.max_calls=3"])
    assert [each.key for each in no_effect_problems(loaded.config)] == ["agent.max_calls"]
