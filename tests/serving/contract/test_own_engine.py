"""An engine of the user's own, registered by the module that `--schema` names."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, running, wait_until_gone
from tests.support.commands import Run, command_runner
from tests.support.engines import OWN_SCHEMAS, own_engines_forgotten, started
from tests.support.server_session import ServerSession, in_session

SCHEMA = OWN_SCHEMAS["plain"]
WORDS = ("--config", "grpo", "--schema", SCHEMA, "rollout.backend=plain", "--dry-run=json")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with own_engines_forgotten():
        yield command_runner(tmp_path, capsys, monkeypatch)


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
        (("actor.use_lora=true", "actor.weight_update_mode=adapter"), "Plain takes no adapters"),
        (("plain.max_lenght=16",), "did you mean plain.max_length?"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1],
)
def test_its_keys_are_checked_like_those_of_the_others(run: Run, words: tuple[str, ...], message: str) -> None:
    done = run(*WORDS, *words)
    assert message in (done.err if done.code else str(json.loads(done.out)["cannot_start"]))


def test_without_its_module_an_engine_is_unknown(run: Run) -> None:
    refusal = run.refusal("--config", "grpo", "rollout.backend=plain")
    assert "expected servers (embedded, sglang, vllm) or auto; an engine of your own needs --schema" in refusal


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("open=open_engine,", "", "the EngineSpec of plain has neither open nor command; give one of them"),
        ("open=open_engine,", "command=print,", "the EngineSpec of plain has a command and no connect; give both"),
        ('"plain.model"', '"plain.modle"', "is 'plain.modle', which is no key of the class; did you mean plain.model?"),
        ("no_adapters(config:", "no_adapters(conf:", "of Plain asks for conf, which no plan has; did you mean config?"),
        ("    plain: PlainConfig", "    plan: PlainConfig", "model_key is 'plain.model', which is no key of"),
    ],
)
def test_a_mistake_in_its_description_is_refused_by_the_plan(
    run: Run, tmp_path: Path, good: str, bad: str, message: str
) -> None:
    text = Path(SCHEMA.partition(":")[0]).read_text(encoding="utf-8")
    assert good in text
    (tmp_path / "bad_schema.py").write_text(text.replace(good, bad), encoding="utf-8")
    words = ("--config", "grpo", "rollout.backend=plain", "--dry-run")
    refusal = run.refusal(*words, "--schema", f"{tmp_path}/bad_schema.py:PlainGRPOConfig")
    assert refusal.startswith("--schema: ") and message in refusal


@pytest.mark.xdist_group("plain")
def test_the_probe_catches_right_hashes_over_old_computation(tmp_path: Path) -> None:
    """As a captured graph may, the engine shows the new weights and computes with a copy of the first ones."""

    async def test(one: ServerSession) -> None:
        await one.serve(0)
        assert len(await one.tokens(n=2, max_new_tokens=4)) == 2
        refused = await one.refusal("/control/update_weights", await asyncio.to_thread(one.server.published, 1))
        assert "trainer and server compute different models: for the probe's token" in refused.message
        assert "is not the published one" not in refused.message, "its hashes are right"

    with started("stale", tmp_path) as server:
        in_session(server, test)


@pytest.mark.xdist_group("plain")
@pytest.mark.timeout(300)
def test_a_run_survives_the_kill_of_an_engine_of_ones_own(tmp_path: Path) -> None:
    words = ("--schema", SCHEMA, "rollout.backend=plain", "actor.weight_update_mode=collective", *SHORT)
    with running(tmp_path, *words, "total_train_steps=4") as going:
        going.wait_for_step(1)
        os.kill(min(going.pids("server/0")), signal.SIGKILL)
        ended = going.wait(250)
    assert ended.code == 0, ended.text
    assert ended.summary["steps"] == 4 and "server/0" in ended.text
    assert audit(ended.ledger(), 2) == []
    assert wait_until_gone(ended.directory) == {}
