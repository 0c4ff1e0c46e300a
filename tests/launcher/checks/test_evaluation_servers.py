"""`evaluator.backend`: the plan has its servers, and says what they do not go with."""

import pytest

from areal_like.config.problems import ConfigError
from areal_like.serving.engines.external.installations import Installation
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


def test_they_may_be_of_another_engine_which_their_command_names() -> None:
    words = ("evaluator.backend=vllm:d1t2", "allocation_mode=embedded:d1+fsdp:d1", "vllm.max_num_seqs=7")
    plan = plan_of("grpo", *words, host=machine_with(4))
    usual, own = [process for process in plan.processes if process.role == "server"]
    assert "--kind" not in usual.command and own.command[own.command.index("--kind") + 1] == "vllm"
    assert usual.gpus == (0,) and own.gpus == (1, 2)
    engine = own.command[own.command.index("--") + 1 :]
    assert (
        engine[engine.index("--tensor-parallel-size") + 1] == "2" and engine[engine.index("--max-num-seqs") + 1] == "7"
    )
    assert not [text for text in plan.warnings if "vllm.max_num_seqs" in text], "its keys are read"
    assert [port.purpose for port in plan.ports if port.process == "server/1"] == ["http", "vllm"]
    assert "evaluator" not in " ".join(problem.key for problem in plan.cannot_start)
    (trainer,) = [process for process in plan.processes if process.role == "trainer"]
    assert trainer.gpus == (3,)


@pytest.mark.parametrize(
    ("gpus", "words", "sizes"),
    [
        (4, ("evaluator.backend=auto",), ("d2", 1, "d1")),
        (8, ("evaluator.backend=vllm:d1t2", "rollout.backend=vllm"), ("d3", 2, "d3")),
        (8, ("evaluator.backend=embedded:d3", "embedded.device=cpu"), ("d1", 3, "d8")),
        (8, (), ("d4", 0, "d4")),
    ],
)
def test_sizes_that_are_left_to_auto_leave_them_their_gpus(
    gpus: int, words: tuple[str, ...], sizes: tuple[str, int, str]
) -> None:
    plan = plan_of("grpo", *words, host=machine_with(gpus))
    found = plan.allocation
    own = (found.get("evaluators") or {"world_size": 0})["world_size"]
    assert (found["rollout"]["dims"], own, found["actor"]["dims"]) == sizes
    assert not [each for each in plan.needs if each.key in ("evaluator.backend", "cluster.n_gpus_per_node")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluator.backend=embedded:d1t2",), "a server of the embedded engine is one process on one device"),
        (("evaluator.backend=vllm:d1p2",), "needs servers with a pipeline (p2)"),
        (("evaluator.backend=auto", "rollout.server_addresses=['h:1']"), "rollout.server_addresses names others"),
    ],
)
def test_what_it_does_not_go_with_is_refused(words: tuple[str, ...], message: str) -> None:
    plan = plan_of("grpo", *words, host=machine_with())
    assert any(each.key == "evaluator.backend" and message in each.message for each in plan.cannot_start)


def test_an_engine_that_is_not_installed_is_missing_for_them_too() -> None:
    def fail(*_: object) -> Installation:
        raise ValueError("there is none")

    host = machine_with()._replace(find_engine=fail)
    assert [each.key for each in plan_of("grpo", "evaluator.backend=vllm", host=host).needs] == ["vllm.python"]


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
