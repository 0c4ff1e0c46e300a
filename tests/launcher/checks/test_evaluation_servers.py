"""`evaluator.backend`: the plan has its servers, and says what they do not go with."""

import pytest

from areal_like.config.problems import ConfigError
from tests.support.planning import load_text, machine_with, plan_of


@pytest.mark.parametrize(("written", "number"), [("auto", 1), ("embedded", 1), ("embedded:d2", 2)])
def test_its_servers_are_processes_after_those_of_training(written: str, number: int) -> None:
    plan = plan_of("grpo", "rollout.backend=embedded:d2", f"evaluator.backend={written}", host=machine_with())
    servers = [process.name for process in plan.processes if process.role == "server"]
    assert servers == [f"server/{index}" for index in range(2 + number)]
    assert plan.servers["evaluating"] == number and not [p for p in plan.cannot_start if "evaluator" in p.key]
    usual = plan_of("grpo", "rollout.backend=embedded:d2", host=machine_with())
    assert "evaluating" not in usual.servers
    assert len([process for process in usual.processes if process.role == "server"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluator.backend=vllm:d1",), "write servers of that kind: embedded:d1"),
        (("evaluator.backend=embedded:d1t2",), "write servers of that kind: embedded:d1"),
        (("evaluator.backend=auto", "rollout.server_addresses=['h:1']"), "rollout.server_addresses names others"),
    ],
)
def test_what_it_does_not_go_with_is_refused(words: tuple[str, ...], message: str) -> None:
    plan = plan_of("grpo", *words, host=machine_with())
    assert any(each.key == "evaluator.backend" and message in each.message for each in plan.cannot_start)


def test_its_gpus_are_counted() -> None:
    def needs(*words: str) -> list[str]:
        plan = plan_of("grpo", "evaluator.backend=auto", *words, host=machine_with(4))
        return [each.message for each in plan.needs if each.key == "evaluator.backend"]

    assert needs("allocation_mode=embedded:d2+fsdp:d1") == []
    (message,) = needs("allocation_mode=embedded:d2+fsdp:d2")
    assert message.startswith("needs 1 GPU beside the 4 of embedded:d2+fsdp:d2, and there are 4")


def test_what_is_no_backend_is_invalid() -> None:
    with pytest.raises(ConfigError, match=r"evaluator\.backend.*cannot be read"):
        load_text("defaults: [grpo]\nevaluator: {backend: 'embedded:x2'}\n")
