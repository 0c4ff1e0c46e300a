"""An engine of the user's own, registered by the module that `--schema` names."""

import json
from pathlib import Path

import pytest

from areal_like.config import engines
from tests.support.commands import REPOSITORY, Run, command_runner

SCHEMA = f"{REPOSITORY}/tests/serving/contract/plain_schema.py:PlainGRPOConfig"
WORDS = ("--config", "grpo", "--schema", SCHEMA, "rollout.backend=plain", "--dry-run=json")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Engines that it registers are forgotten afterwards."""
    monkeypatch.setattr(engines, "_registered", dict(engines._registered))
    return command_runner(tmp_path, capsys, monkeypatch)


def test_an_engine_of_ones_own_is_planned_by_its_name(run: Run) -> None:
    plan = json.loads(run.answer(*WORDS[:-2], "allocation_mode=plain:d2+fsdp:d1", "rollout.backend=auto", WORDS[-1]))
    servers = [process for process in plan["processes"] if process["role"] == "server"]
    assert plan["allocation"]["rollout"]["backend"] == "plain" and len(servers) == 2
    assert "--" not in servers[0]["command"], "it runs in the process of its server"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rollout.backend=plain:d1t2",), "Write plain:d2 for 2 servers"),
        (("rollout.backend=plian",), "did you mean plain?"),
        (("plain.model=some/model",), "plain.model [override plain.model=some/model]: is 'some/model', but actor.path"),
        (("rollout.update_mode=keep",), "keep is not supported by Plain, which continues an answer by a new request"),
        (("plain.max_length=16", "gconfig.max_new_tokens=20"), "no room for a prompt in the server's 16 (plain.max_l"),
        (("plain.answers_backwards=true",), "no engine can do that"),
        (("plain.max_lenght=16",), "did you mean plain.max_length?"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1],
)
def test_its_keys_are_checked_like_those_of_the_others(run: Run, words: tuple[str, ...], message: str) -> None:
    done = run(*WORDS, *words)
    assert message in (done.err if done.code else str(json.loads(done.out)["cannot_start"]))


def test_without_its_module_an_engine_is_unknown(run: Run) -> None:
    assert "expected servers (embedded, sglang, vllm)" in run.refusal("--config", "grpo", "rollout.backend=plain")
