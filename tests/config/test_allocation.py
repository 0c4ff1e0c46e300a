"""Allocation: every form of the string, every reason to refuse one, and defaults from the machine."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.config.allocation import (
    Allocation,
    AllocationSyntaxError,
    ClusterSize,
    Machine,
    ParallelStrategy,
    parse_mode,
    parse_server,
    parse_trainer,
    resolve,
)
from areal_like.config.allocation.base import AllocationMode, BackendSpec, ParallelDims
from areal_like.config.problems import Problem

GRPO = {"actor": "auto", "ref": "auto"}


def gpus(count: int, engines: tuple[str, ...] = ("sglang", "vllm"), cores: int = 64) -> Machine:
    return Machine(count, cores, "test", engines)


def settle(mode="auto", rollout="auto", train=GRPO, cluster=None, on=None, **more) -> Allocation:
    allocation, problems = resolve(mode, rollout, train, cluster or ClusterSize(), on or gpus(64), **more)
    assert not problems, problems
    assert allocation is not None
    return allocation


def refuse(mode="auto", rollout="auto", train=GRPO, cluster=None, on=None) -> list[Problem]:
    allocation, problems = resolve(mode, rollout, train, cluster or ClusterSize(), on or gpus(64))
    assert allocation is None
    assert problems
    return problems


# ---- the forms of allocation_mode ----


@pytest.mark.parametrize(
    ("text", "rollout", "train"),
    [
        ("sglang.d4p1t1+d4p1t1", ("sglang", 4), ("fsdp", 4)),
        ("sglang:d4t2+fsdp:d8", ("sglang", 8), ("fsdp", 8)),
        ("sglang:d4+fsdp:d2c2", ("sglang", 4), ("fsdp", 4)),
        ("vllm:d2t4+megatron:d2t2p2", ("vllm", 8), ("megatron", 8)),
        ("sglang:d4+d2p2", ("sglang", 4), ("megatron", 4)),
        ("vllm.d4p1t2+d8p1t1", ("vllm", 8), ("fsdp", 8)),
        ("embedded:d2+fsdp:d1", ("embedded", 2), ("fsdp", 1)),
        ("embedded.d1+d1", ("embedded", 1), ("fsdp", 1)),
        ("sglang.d4+fsdp.d4", ("sglang", 4), ("fsdp", 4)),
        ("vllm:d2+megatron.d2t2", ("vllm", 2), ("megatron", 4)),
        ("sglang:d4p2t2+megatron:(attn:d2p2t2c2|ffn:d2p2t2e2)", ("sglang", 16), ("megatron", 16)),
        ("sglang:d4p1t2+attn:d4p2t2c2|ffn:d2p2t4e2", ("sglang", 8), ("megatron", 32)),
        (" sglang : d4 t2  +\tfsdp : d 8 ", ("sglang", 8), ("fsdp", 8)),
        ("sglang:d8", ("sglang", 8), None),
        ("sglang:d4p2t2", ("sglang", 16), None),
        ("sglang.d4p1t1+eval", ("sglang", 4), None),
        ("vllm:d4 + cpu", ("vllm", 4), None),
    ],
)
def test_servers_with_and_without_a_trainer(text, rollout, train):
    found = settle(text)
    assert found.rollout and (found.rollout.backend, found.rollout.world_size) == rollout
    if train is None:
        assert found.train is None and found.ref is None
    else:
        assert found.train and (found.train.backend, found.train.world_size) == train
        assert found.ref == found.train


@pytest.mark.parametrize(
    ("text", "backend", "world", "expert_data", "expert_tensor"),
    [
        ("fsdp:d4", "fsdp", 4, 4, 1),
        ("fsdp.d4", "fsdp", 4, 4, 1),
        ("d4", "fsdp", 4, 4, 1),
        ("d4t2c2", "fsdp", 16, 16, 1),
        ("t2", "fsdp", 2, 2, 1),
        ("d2p2t1", "megatron", 4, 2, 1),
        ("d4p2t1", "megatron", 8, 4, 1),
        ("megatron:d2p2t1", "megatron", 4, 2, 1),
        ("d2p2t4e2c4", "megatron", 64, 16, 1),
        ("(attn:d4p2t2c2|ffn:d2p2t4e2)", "megatron", 32, 2, 4),
        ("attn:d4p2t2c2|ffn:d2p2t4e2", "megatron", 32, 2, 4),
        ("megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", "megatron", 32, 2, 4),
        ("megatron:(attn:d1p1t4|ffn:d1p1t1e4)", "megatron", 4, 1, 1),
        ("megatron:attn:d4t2|ffn:t1e4", "megatron", 8, 2, 1),
        ("megatron : ( attn : d4 | ffn : e2 )", "megatron", 4, 2, 1),
    ],
)
def test_trainer_alone(text, backend, world, expert_data, expert_tensor):
    found = settle(text, rollout=None, train={"model": "auto"})
    assert found.rollout is None
    assert found.train is not None
    assert (found.train.backend, found.train.world_size) == (backend, world)
    assert (found.train.expert_data, found.train.expert_tensor) == (expert_data, expert_tensor)


@pytest.mark.parametrize("text", ["", "  ", "auto", " auto ", "heuristic"])
def test_every_spelling_of_auto_means_auto(text):
    assert settle(text) == settle("auto")
    assert parse_mode(text) == AllocationMode(keyword="auto")


def test_eval_and_servers_only_are_distinguished():
    evaluating, serving = settle("sglang:d4+eval"), settle("sglang:d4")
    assert evaluating.eval_only and not evaluating.servers_only
    assert serving.servers_only and not serving.eval_only
    assert "no trainer" in serving.warnings[0].message
    assert "nothing is trained" in serving.reasons["actor.backend"]


# ---- what cannot be read ----


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("D4", 1, "lower case"),
        ("d0", 2, "at least 1"),
        ("d00", 2, "at least 1"),
        ("d04", 2, "leading 0"),
        ("d-1", 2, "expected a number"),
        ("d9999999", 2, "7 digits"),
        ("d" + "9" * 5000, 2, "5000 digits"),
        ("d4d2", 3, "given twice"),
        ("sglang:d4t2t2", 12, "given twice"),
        ("d4x2", 3, "no dimension 'x'"),
        ("d32p1m4", 6, "is t now"),
        ("sglang:d2e2", 10, "not for a server"),
        ("sglang:d2c2", 10, "not for a server"),
        ("hf:d4", 1, "use embedded"),
        ("archon:d4", 1, "use fsdp"),
        ("vlm:d4", 1, "did you mean vllm?"),
        ("SGLang:d4", 1, "did you mean sglang?"),
        ("sglang:d4+fdsp:d4", 11, "did you mean fsdp?"),
        ("atuo", 1, "did you mean auto?"),
        ("sglang:d4+evall", 11, "did you mean eval?"),
        ("sglang:d4+", 11, "expected a trainer"),
        ("sglang:d4+sglang:d4", 11, "does not train"),
        ("sglang:", 8, "expected sizes"),
        ("sglang", 7, "needs sizes"),
        ("sglang+fsdp", 7, "needs sizes"),
        ("sglang:d4|eval", 11, "only after servers and '+'"),
        ("eval", 1, "only after servers and '+'"),
        ("manual+d4", 1, "cannot be combined"),
        ("fsdp:d4+sglang:d4", 8, "Servers come first"),
        ("fsdp:d4|fsdp:d4", 8, "Servers come first"),
        ("sglang:d4+d4+d4", 13, "ref.backend and critic.backend"),
        ("sglang[rollout]:d4+fsdp[actor]:d4", 7, "named parts are not supported"),
        ("[actor]:d4", 1, "named parts are not supported"),
        ("d4 2", 4, "expected a further size"),
        ("d4;", 3, "expected a further size"),
        ("(fsdp:d4)", 2, "expected 'attn:'"),
        ("attn:d4", 8, "and the ffn part"),
        ("attn:e4|ffn:d4", 6, "not for the attn part"),
        ("attn:d4|ffn:c4", 13, "not for the ffn part"),
        ("(attn:d4|ffn:d4", 16, "')'"),
        ("attn:d4|ffn:d4)", 15, "expected a further size"),
        ("sglang:(attn:d4|ffn:d4)", 8, "expected sizes"),
        ("d\u0664", 2, "expected a number"),
        ("d\u00b2", 2, "expected a number"),
        ("+", 1, "expected servers"),
    ],
)
def test_a_syntax_error_names_its_position_and_what_was_expected(text, position, words):
    with pytest.raises(AllocationSyntaxError, match="cannot be read") as caught:
        parse_mode(text)
    assert (caught.value.position, caught.value.text) == (position, text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert [(p.key, p.message) for p in refuse(text)] == [("allocation_mode", str(caught.value))]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (parse_server, "fsdp:d4", "'fsdp' trains"),
        (parse_server, "d4", "sizes need an engine here: embedded:d4"),
        (parse_server, "auto:d4", "cannot be combined"),
        (parse_server, "vllm:", "expected sizes"),
        (parse_server, "vllm4", "did you mean vllm?"),
        (parse_server, "vllm:d4+fsdp:d4", "allocation_mode"),
        (parse_server, "manual", "cannot be combined"),
        (parse_trainer, "vllm", "'vllm' serves"),
        (parse_trainer, "d4", "fsdp:d4"),
        (parse_trainer, "megtron", "did you mean megatron?"),
        (parse_trainer, "archon", "use fsdp"),
        (parse_trainer, "fsdp:d4d4", "given twice"),
    ],
)
def test_invalid_backend_keys_are_refused(read, text, words):
    with pytest.raises(AllocationSyntaxError) as caught:
        read(text)
    assert words in str(caught.value)


def test_backend_keys_take_a_name_with_or_without_sizes():
    for nothing in ("", " ", "auto"):
        assert parse_server(nothing) == parse_trainer(nothing) == BackendSpec()
    assert parse_server("vllm") == BackendSpec("vllm")
    assert (
        parse_server(" vllm : d2 t4")
        == parse_server("vllm.d2t4")
        == BackendSpec("vllm", ParallelDims(data=2, tensor=4))
    )
    assert (
        parse_trainer("fsdp:d4c2") == parse_trainer("fsdp.d4c2") == BackendSpec("fsdp", ParallelDims(data=4, context=2))
    )
    assert parse_trainer("megatron:(attn:d4|ffn:e2)").ffn == ParallelDims(data=2, expert=2)


# ---- what can be read and cannot be ----


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sglang:d8|fsdp:d8", "Write sglang:d4+fsdp:d4"),
        ("sglang:d1|fsdp:d1", "Write sglang:d1+fsdp:d1"),
        ("sglang:d4|fsdp:d8", "'|'"),
        ("sglang:d4|(attn:d4|ffn:e2)", "'|'"),
        ("fsdp:d2p2", "Write fsdp:d4 for the same 4 devices"),
        ("sglang:d4+fsdp:d2e2", "e2 (expert)"),
        ("fsdp:d2p2e2", "p2 (pipeline) and e2 (expert)"),
        ("fsdp:(attn:d4|ffn:t2e2)", "attention and experts"),
        ("d2e4", "e4 does not divide the 2 devices. Allowed: e2 or no e"),
        ("megatron:d2p4e4", "in each of the 4 stages"),
        ("megatron:d1p4e2", "no e at all"),
        ("(attn:d2p2t1c4|ffn:d2p4t1e2)", "attn has p2 and ffn has p4"),
        ("(attn:d4p2t1c1|ffn:d2p2t2e2)", "attn spans 8 devices (d*t*p*c) and ffn spans 16 devices"),
        ("megatron:(attn:d4|ffn:e3)", "ffn spans 3 devices"),
        ("embedded:d1t2+fsdp:d1", "Write embedded:d2 for 2 servers, or vllm:d1t2"),
        ("embedded:d2p2", "one process on one device"),
    ],
)
def test_impossible_combinations(text, words):
    (problem,) = refuse(text)
    assert problem.key == "allocation_mode"
    assert words in problem.message


def test_impossible_combinations_are_reported_under_their_backend_keys():
    problems = refuse(rollout="embedded:d1t2", train={"actor": "fsdp:d2p2", "ref": "fsdp:e2"})
    assert [problem.key for problem in problems][:3] == ["rollout.backend", "actor.backend", "ref.backend"]


def test_sizes_alone_take_the_name_of_the_backend_key():
    found = settle("sglang.d4p1t1+d4p1t1", train={"actor": "megatron", "ref": "megatron"})
    assert str(found) == "sglang:d4+megatron:d4"
    (problem,) = refuse("sglang:d4+d2p2", train={"actor": "fsdp"})
    assert (problem.key, problem.also) == ("allocation_mode", ("actor.backend",))
    assert "fsdp:d2p2" in problem.message


def test_all_problems_are_reported_at_once():
    problems = refuse("sglang:d8|fsdp:d8", "vlm", {"actor": "fsdp:d4d2", "ref": "fsdp:p2", "critic": "vllm"})
    keys = [problem.key for problem in problems]
    assert keys == ["rollout.backend", "actor.backend", "ref.backend", "critic.backend", "allocation_mode"]


# ---- settings in two places ----


@pytest.mark.parametrize("actor", ["", "auto", "fsdp", "fsdp:d4", "fsdp:d4t1"])
@pytest.mark.parametrize("rollout", ["", "auto", "sglang", "sglang:d4", "sglang.d4p1"])
def test_equal_settings_in_both_places_are_accepted(rollout, actor):
    assert str(settle("sglang:d4+fsdp:d4", rollout, {"actor": actor})) == "sglang:d4+fsdp:d4"


@pytest.mark.parametrize("rollout", ["vllm", "sglang:d2", "vllm:d2t2", "sglang:d4t2"])
def test_other_servers_contradict(rollout):
    (problem,) = refuse("sglang:d4+fsdp:d4", rollout)
    assert (problem.key, problem.also) == ("rollout.backend", ("allocation_mode",))
    assert f"rollout.backend={rollout}" in problem.message
    assert "allocation_mode=sglang:d4+fsdp:d4" in problem.message


@pytest.mark.parametrize(
    ("actor", "advice"),
    [
        ("fsdp", "allocation_mode=sglang:d4+fsdp:d8"),
        ("fsdp:d8", "allocation_mode=sglang:d4+fsdp:d8"),
        ("megatron:d4t2", "allocation_mode=sglang:d4+megatron:d4t2"),
    ],
)
def test_another_trainer_contradicts_and_the_remedy_is_possible(actor, advice):
    (problem,) = refuse("sglang:d4+megatron:d2t2p2", train={"actor": actor})
    assert problem.key == "actor.backend"
    assert f"{advice} keeps" in problem.message
    settle(advice.split("=")[1], train={"actor": actor})


def test_the_allocation_may_be_split_over_both_keys():
    assert str(settle("sglang:d4", train={"actor": "fsdp:d2"})) == "sglang:d4+fsdp:d2"
    assert str(settle("fsdp:d2", rollout="vllm:d2t2")) == "vllm:d2t2+fsdp:d2"
    assert str(settle("fsdp:d6", rollout="vllm", on=gpus(8))) == "vllm:d2+fsdp:d6"
    (problem,) = refuse("sglang:d4+eval", train={"actor": "fsdp:d2"})
    assert (problem.key, problem.also) == ("actor.backend", ("allocation_mode",))
    assert settle("sglang:d4+eval", train={"actor": "fsdp"}).actor is None


def test_manual_takes_everything_from_the_backend_keys():
    assert str(settle("manual", "vllm:d2t2", {"actor": "fsdp:d4", "ref": "auto"})) == "vllm:d2t2+fsdp:d4"
    assert str(settle("manual", None, {"model": "fsdp:d4"})) == "fsdp:d4"
    assert [problem.key for problem in refuse("manual")] == ["rollout.backend", "actor.backend"]
    (problem,) = refuse("manual", "vllm:d2", {"actor": "fsdp", "ref": "fsdp:d4"})
    assert problem.key == "actor.backend"
    assert "manual" in problem.message and "fsdp:d1" in problem.message


def test_servers_in_an_experiment_without_servers():
    (problem,) = refuse("sglang:d4+fsdp:d4", None, {"model": "fsdp"})
    assert "Write allocation_mode=fsdp:d4" in problem.message
    (problem,) = refuse("sglang:d4+eval", None, {"model": "fsdp"})
    assert "Write allocation_mode=auto" in problem.message


@pytest.mark.parametrize("own", ["", "auto", "fsdp", "fsdp:d4t2", "fsdp:d8", "fsdp:d2c4"])
def test_ref_and_critic_run_in_the_trainers_processes(own):
    found = settle("vllm:d2+fsdp:d4t2", train={"actor": "auto", "ref": own, "critic": own})
    assert found.ref == found.critic
    assert found.ref is not None and found.ref.world_size == 8
    assert "actor.backend" in found.reasons["ref.backend"] or ":" in own


def test_ref_of_another_world_is_a_problem():
    (problem,) = refuse("vllm:d2+fsdp:d4", train={"actor": "auto", "ref": "fsdp:d2"})
    assert (problem.key, problem.also) == ("ref.backend", ("actor.backend",))
    assert "ref.backend=fsdp:d2 takes 2 devices" in problem.message
    (problem,) = refuse(train={"actor": "megatron:d2p2", "ref": "fsdp"})
    assert problem.key == "ref.backend" and "fsdp:d4" in problem.message


# ---- what this framework or this machine lacks ----


def test_megatron_and_server_pipelines_are_planned_and_cannot_start():
    found = settle("sglang.d4p1t1+d1p2t2", train={"actor": "megatron", "ref": "auto"})
    (reason,) = found.cannot_start
    assert (reason.key, reason.also) == ("allocation_mode", ("actor.backend",))
    assert "not a backend of this framework" in reason.message
    assert reason.message.endswith(
        "fsdp:d4 takes the same 4 devices, on a machine that has them; fsdp:d1 starts on any"
    )
    (reason,) = settle(rollout="vllm:d2p2", train={"actor": "fsdp:d1"}).cannot_start
    assert reason.key == "rollout.backend" and "vllm:d2t2" in reason.message


@pytest.mark.parametrize("cluster", [ClusterSize(1, 8), ClusterSize(1, "auto"), ClusterSize(1, 8, "slurm")])
def test_an_allocation_too_large_for_the_cluster_is_reported(cluster):
    found = settle("sglang:d4+fsdp:d8", cluster=cluster, on=gpus(8))
    (need,) = found.needs
    assert need.key == "allocation_mode"
    assert "takes 12 GPUs; the cluster has 8 GPUs" in need.message
    assert not settle("sglang:d8+fsdp:d8", cluster=ClusterSize(2, 8), on=gpus(8)).needs


@pytest.mark.parametrize(
    ("mode", "rollout", "actor", "keys"),
    [
        ("auto", "auto", "auto", []),
        ("auto", "vllm:d2", "fsdp:d2", ["rollout.backend", "actor.backend"]),
        ("manual", "vllm:d2", "fsdp:d2", ["allocation_mode", "rollout.backend", "actor.backend"]),
        ("vllm:d2", "auto", "auto", ["allocation_mode"]),
    ],
)
def test_the_remedy_for_missing_gpus_names_every_key_that_sets_sizes(mode, rollout, actor, keys):
    need = settle(mode, rollout, {"actor": actor}, ClusterSize(1, 8), gpus(0)).needs[-1]
    words = " ".join(f"{key}=auto" for key in (*keys, "cluster.n_gpus_per_node"))
    assert need.message.endswith(f"Write {words} to use what it has")


def test_gpus_missing_on_this_machine_are_reported():
    (need,) = settle("sglang:d4+fsdp:d4", cluster=ClusterSize(1, 8), on=gpus(0)).needs
    assert need.key == "cluster.n_gpus_per_node" and "has none" in need.message
    assert "Write allocation_mode=auto cluster.n_gpus_per_node=auto to use what it has" in need.message
    assert not settle("sglang:d4+fsdp:d4", cluster=ClusterSize(1, 8, "slurm"), on=gpus(0)).needs
    assert not settle("embedded:d1+fsdp:d1", cluster=ClusterSize(1, 0), on=gpus(0)).needs
    (warning,) = settle(cluster=ClusterSize(2, "auto", "slurm"), on=gpus(4)).warnings
    assert "as many GPUs as this machine: 4 GPUs" in warning.message


def test_a_server_stays_inside_a_node():
    (need,) = settle("vllm:d1t16", cluster=ClusterSize(2, 8), on=gpus(8)).needs
    assert "takes 16 GPUs and a node has 8" in need.message


def test_the_allocation_does_not_check_the_number_of_cores():
    found = settle("sglang:d4+fsdp:d4", on=gpus(0, cores=2))
    assert not found.needs and found.num_gpus == 0
    assert not found.warnings


# ---- auto ----


@pytest.mark.parametrize(
    ("count", "text", "shared", "words"),
    [
        (0, "embedded:d1+fsdp:d1", False, "no GPU on this machine"),
        (1, "embedded:d1+fsdp:d1", True, "memory split"),
        (2, "vllm:d1+fsdp:d1", False, "1 GPU for servers, 1 GPU for the trainer"),
        (3, "vllm:d2+fsdp:d1", False, "servers get the odd one"),
        (8, "vllm:d4+fsdp:d4", False, "4 GPUs for servers"),
    ],
)
def test_auto_depends_on_the_number_of_gpus(count, text, shared, words):
    found = settle(on=gpus(count))
    assert (str(found), found.shared_device) == (text, shared)
    assert words in found.reasons["rollout.backend"] and words in found.reasons["actor.backend"]
    assert found.num_gpus == count and not found.needs and not found.cannot_start


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (ClusterSize(2, 8), "vllm:d8+fsdp:d8"),
        (ClusterSize(3, 8), "vllm:d16+fsdp:d8"),
        (ClusterSize(2, 1), "vllm:d1+fsdp:d1"),
        (ClusterSize(2, "auto"), "vllm:d4+fsdp:d4"),
        (ClusterSize(1, 0), "embedded:d1+fsdp:d1"),
        (ClusterSize(1, 2), "vllm:d1+fsdp:d1"),
    ],
)
def test_auto_on_several_nodes_takes_whole_nodes(cluster, text):
    assert str(settle(cluster=cluster, on=gpus(4))) == text


@pytest.mark.parametrize(
    ("engines", "name"), [(("vllm",), "vllm"), (("sglang",), "sglang"), (("sglang", "vllm"), "vllm"), ((), "embedded")]
)
def test_auto_takes_an_installed_engine(engines, name):
    found = settle(on=gpus(4, engines))
    assert str(found.rollout) == f"{name}:d2"
    assert "installed here" in found.reasons["rollout.backend"]


def test_auto_keeps_named_values_and_fills_in_the_rest():
    assert str(settle(rollout="sglang", on=gpus(8))) == "sglang:d4+fsdp:d4"
    assert str(settle(rollout="sglang", on=gpus(0))) == "sglang:d1+fsdp:d1"
    assert str(settle(rollout="vllm:d1t2", on=gpus(8))) == "vllm:d1t2+fsdp:d6"
    assert str(settle(train={"actor": "fsdp:d2c2"}, on=gpus(8))) == "vllm:d4+fsdp:d2c2"
    found = settle(rollout="vllm:d8", on=gpus(8))
    assert str(found) == "vllm:d8+fsdp:d1" and "takes 9 GPUs" in found.needs[0].message


@pytest.mark.parametrize(("count", "text"), [(0, "fsdp:d1"), (1, "fsdp:d1"), (8, "fsdp:d8")])
def test_auto_without_servers_trains_on_all(count, text):
    found = settle(rollout=None, train={"model": "fsdp"}, on=gpus(count))
    assert str(found) == text
    assert not found.shared_device and list(found.reasons) == ["model.backend"]


def test_one_server_and_one_trainer_share_the_only_gpu():
    found = settle("sglang.d1p1t1+d1p1t1", cluster=ClusterSize(1, 1), on=gpus(1))
    assert found.shared_device and found.num_gpus == 1 and not found.needs
    assert settle("sglang:d2+fsdp:d1", on=gpus(1)).needs
    assert not settle("sglang:d1+fsdp:d1", on=gpus(2)).shared_device


def test_servers_on_the_cpu_take_no_gpu():
    found = settle(rollout="embedded", on=gpus(4), servers_on_cpu=True)
    assert str(found) == "embedded:d1+fsdp:d4" and found.num_gpus == 4
    assert not settle("embedded:d4+fsdp:d1", on=gpus(1), servers_on_cpu=True).shared_device


@given(count=st.integers(0, 40), nodes=st.integers(1, 5))
def test_auto_always_fits(count, nodes):
    found = settle(cluster=ClusterSize(nodes, count), on=gpus(count))
    assert found.rollout and found.actor
    assert not found.needs
    assert found.num_gpus == nodes * count
    assert found.reasons.keys() == {"rollout.backend", "actor.backend", "ref.backend"}


# ---- properties of reading ----

sizes = st.integers(1, 9999)
server_sizes = st.builds(ParallelDims, data=sizes, tensor=sizes, pipeline=sizes)
trainer_sizes = st.builds(ParallelDims, data=sizes, tensor=sizes, pipeline=sizes, context=sizes, expert=sizes)
hybrids = st.builds(
    BackendSpec,
    st.sampled_from([None, "fsdp", "megatron"]),
    st.builds(ParallelDims, data=sizes, tensor=sizes, pipeline=sizes, context=sizes),
    st.builds(ParallelDims, data=sizes, tensor=sizes, pipeline=sizes, expert=sizes),
)
server_parts = st.builds(BackendSpec, st.sampled_from(["embedded", "sglang", "vllm"]), server_sizes)
trainer_parts = st.builds(BackendSpec, st.sampled_from([None, "fsdp", "megatron"]), trainer_sizes) | hybrids
modes = st.one_of(
    st.builds(AllocationMode, keyword=st.sampled_from(["auto", "manual"])),
    st.builds(AllocationMode, rollout=server_parts),
    st.builds(AllocationMode, train=trainer_parts),
    st.builds(AllocationMode, rollout=server_parts, train=trainer_parts, colocated=st.booleans()),
    st.builds(AllocationMode, rollout=server_parts, client=st.sampled_from(["eval", "cpu"])),
)
small = st.integers(1, 4)
tokens = st.sampled_from([*"dtpce0123479:.+|()[] ", "attn", "ffn", "sglang", "vllm", "embedded", "fsdp", "megatron"])
garbage = st.text(max_size=30) | st.lists(tokens | st.sampled_from(["eval", "cpu", "auto"]), max_size=14).map("".join)


@given(modes)
def test_the_canonical_form_reads_back_to_the_same(mode):
    assert parse_mode(str(mode)) == mode


@given(server_parts, trainer_parts.filter(lambda part: part.backend is not None))
def test_the_canonical_form_of_a_backend_key_reads_back_to_the_same(server, trainer):
    assert parse_server(str(server)) == server
    assert parse_trainer(str(trainer)) == trainer


@given(data=small, tensor=small, pipeline=small, context=small, expert=small, expert_tensor=small, copies=small)
def test_a_resolved_trainer_reads_back_to_the_same(data, tensor, pipeline, context, expert, expert_tensor, copies):
    data *= expert * expert_tensor * copies
    parallel = ParallelStrategy(
        backend="megatron",
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        expert_tensor=expert_tensor,
    )
    assert ParallelStrategy.of(parse_trainer(str(parallel))) == parallel
    assert settle(str(parallel), rollout=None, train={"model": ""}).actor == parallel


@given(modes, st.integers(0, 4), st.sampled_from([" ", "\t", "  "]))
def test_spaces_between_tokens_mean_nothing(mode, every, space):
    if mode.keyword is None:
        text = "".join(c + space * (i % 5 == every) if c in ":|+()" else c for i, c in enumerate(str(mode)))
        assert parse_mode(f"{space}{text}{space}") == mode


@given(garbage)
def test_garbage_raises_the_syntax_error_and_nothing_else(text):
    for read in (parse_mode, parse_server, parse_trainer):
        try:
            found = read(text)
        except AllocationSyntaxError as error:
            assert 1 <= error.position <= len(text) + 1
        else:
            assert read(str(found)) == found


@given(garbage, garbage, garbage, garbage)
def test_resolving_garbage_gives_an_allocation_or_problems(mode, rollout, actor, ref):
    allocation, problems = resolve(mode, rollout, {"actor": actor, "ref": ref}, ClusterSize(), gpus(8))
    assert (allocation is None) == bool(problems)


@given(
    modes,
    server_parts | st.just(BackendSpec()),
    trainer_parts.filter(lambda part: part.backend) | st.just(BackendSpec()),
)
def test_an_accepted_allocation_is_the_one_that_is_planned(mode, server, trainer):
    allocation, problems = resolve(str(mode), str(server), {"actor": str(trainer)}, ClusterSize(1, 8), gpus(8))
    assert (allocation is None) == bool(problems)
    assert all(problem.key and problem.message for problem in problems)
    if allocation and allocation.rollout and mode.rollout:
        assert str(allocation.rollout) == str(mode.rollout)
    if allocation and allocation.actor:
        assert allocation.actor.backend != "fsdp" or allocation.actor.pipeline == allocation.actor.expert == 1
        assert allocation.actor.world_size % allocation.actor.pipeline == 0


def test_only_the_standard_library_is_imported():
    code = (
        "import sys; before = set(sys.modules); import areal_like.config.allocation\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new & {'torch', 'numpy', 'yaml', 'hydra', 'omegaconf'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
