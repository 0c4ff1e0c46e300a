"""Tokens of a micro-batch and recomputation that `auto` chooses for a GPU, with reasons; on a CPU nothing changes."""

import pytest

from areal_like.config.number_text import size_text
from areal_like.config.problems import ConfigError
from launcher.plan.auto import resolved_values
from launcher.plan.micro_batch_limit import MOST_TOKENS, STEP
from launcher.plan.rank_memory import usable_bytes
from tests.support.planning import GIB, loaded, machine_with, plan_of

LIMIT, RECOMPUTE = "actor.mb_spec.max_tokens_per_mb", "actor.gradient_checkpointing"
QWEN = ("actor=qwen3_0_6b", "gconfig.max_new_tokens=1024")


def machine(gpu_gib, gpus=1):
    host = machine_with(gpus, 32)
    return host._replace(gpus=tuple(gpu._replace(memory_bytes=gpu_gib * GIB) for gpu in host.gpus))


def autos(plan):
    return {each.key: each for each in plan.auto}


@pytest.mark.parametrize(
    ("gpu_gib", "gpus", "actor", "recompute"),
    [
        (80, 1, "qwen3_0_6b", True),
        (24, 1, "qwen3_0_6b", True),
        (80, 8, "qwen3_0_6b", False),
        (24, 8, "qwen3_0_6b", True),
        (80, 8, "qwen2_5_1_5b", False),
        (80, 1, "qwen2_5_1_5b", True),
        (24, 1, "smollm2_135m", True),
        (80, 1, "smollm2_135m", False),
    ],
)
@pytest.mark.parametrize("rollout", ["embedded", "vllm", "sglang"])
def test_shipped_actors_are_sane_runs_on_one_gpu_and_on_eight(gpu_gib, gpus, actor, recompute, rollout):
    words = (f"actor={actor}", f"rollout={rollout}", "gconfig.max_new_tokens=1024")
    plan = plan_of("grpo", *words, host=machine(gpu_gib, gpus))
    chosen = autos(plan)
    assert chosen[RECOMPUTE].value is recompute
    tokens, (model,) = chosen[LIMIT].value, plan.memory.trainer
    assert plan.batch.max_tokens_per_sample <= tokens <= MOST_TOKENS and tokens % STEP == 0
    server = sum(each.value for key, each in chosen.items() if key.endswith("kv_cache_memory_bytes") and each.value)
    assert model.total + tokens * model.activations_per_token <= usable_bytes(gpu_gib * GIB, server)
    assert plan.batch.max_tokens_per_micro_batch == tokens
    config = loaded("grpo", *words).config
    assert config.actor.dtype == "bfloat16" and 1e-6 <= config.actor.optimizer.lr <= 1e-5
    problems = [warning for warning in plan.warnings if warning.startswith(("actor.optimizer", "actor.mb_spec"))]
    assert not problems and not plan.cannot_start


def test_reasons_name_the_bytes_of_models_server_and_tokens():
    chosen = autos(plan_of("grpo", *QWEN, host=machine(80)))
    assert "tokens of 158 KiB fit into 80.0 GiB beside 12.0 GiB of models and the server's" in chosen[LIMIT].reason
    assert "16,384 are wanted" in chosen[RECOMPUTE].reason


def test_written_values_win_and_null_is_no_limit():
    plan = plan_of("grpo", *QWEN, f"{LIMIT}=null", f"{RECOMPUTE}=false", host=machine(80, 8))
    assert not {LIMIT, RECOMPUTE} & autos(plan).keys()
    assert plan.batch.max_tokens_per_micro_batch is None
    plan = plan_of("grpo", *QWEN, f"{RECOMPUTE}=false", host=machine(24, 8))
    assert autos(plan)[LIMIT].value < 10_000 and RECOMPUTE not in autos(plan)


def test_on_a_cpu_there_is_no_limit_and_layers_are_recomputed():
    chosen = autos(plan_of("grpo", f"{RECOMPUTE}=auto"))
    assert (chosen[LIMIT].value, chosen[RECOMPUTE].value) == (None, True)
    assert "AReaL's default" in chosen[LIMIT].reason


def test_a_limit_holds_the_longest_sample():
    long = ("gconfig.max_new_tokens=40000", "train_dataset.max_length=900")
    assert autos(plan_of("grpo", *QWEN, *long, host=machine(80)))[LIMIT].value == 40900
    pairs = ("model.path=Qwen/Qwen3-0.6B", "train_dataset.max_length=20000")
    assert autos(plan_of("reward_model", *pairs, host=machine(80)))["model.mb_spec.max_tokens_per_mb"].value == 40000


def test_all_models_of_a_rank_get_one_limit():
    """Those of the critic and the reference follow the actor's keys."""
    plan = plan_of("ppo", *QWEN, "actor.kl_ctl=0.1", host=machine(80, 8))
    chosen = autos(plan)
    assert {key for key in chosen if key.endswith(("max_tokens_per_mb", "gradient_checkpointing"))} == {
        LIMIT,
        RECOMPUTE,
    }
    assert [model.model for model in plan.memory.trainer] == ["actor", "ref", "critic"]
    needed = plan.memory.trainer_rank_bytes + chosen[LIMIT].value * max(
        model.activations_per_token for model in plan.memory.trainer
    )
    assert needed <= usable_bytes(80 * GIB, 0)


@pytest.mark.parametrize(
    ("words", "gpu_gib", "why"),
    [
        (("actor.path=some/model", "actor.dtype=bfloat16"), 80, "the size of the model is not known"),
        (("actor=qwen3_0_6b",), None, "the memory of the GPU is not known"),
    ],
)
def test_what_is_not_known_gets_careful_values(words, gpu_gib, why):
    host = machine(80)
    if gpu_gib is None:
        host = host._replace(gpus=tuple(gpu._replace(memory_bytes=None) for gpu in host.gpus))
    chosen = autos(plan_of("grpo", *words, f"{RECOMPUTE}=auto", host=host))
    assert (chosen[LIMIT].value, chosen[RECOMPUTE].value) == (8192, True)
    assert why in chosen[LIMIT].reason


def test_a_run_saves_the_values_of_its_plan():
    words = (*QWEN, "actor.kl_ctl=0.1")
    plan = plan_of("grpo", *words, host=machine(80))
    values = resolved_values(loaded("grpo", *words), plan.auto)
    limit = autos(plan)[LIMIT].value
    assert values["actor"]["mb_spec"]["max_tokens_per_mb"] == values["ref"]["mb_spec"]["max_tokens_per_mb"] == limit
    assert values["ref"]["gradient_checkpointing"] is True


def test_padding_needs_a_written_limit():
    assert any(problem.key == LIMIT for problem in errors("actor.pad_to_maximum=true"))
    assert not errors("actor.pad_to_maximum=true", f"{LIMIT}=64")


def errors(*words):
    try:
        loaded("grpo", *words)
    except ConfigError as error:
        return error.problems
    return ()


def test_layers_are_compiled_on_a_gpu_unless_the_key_is_set():
    words = (*QWEN, "actor.kl_ctl=0.1")
    plan = plan_of("ppo", *words, gpus=2)
    chosen = {key: each for key, each in autos(plan).items() if ".compile" in key}
    assert list(chosen) == [f"{name}.compile.required" for name in ("actor", "ref", "critic")]
    actor = chosen["actor.compile.required"]
    assert actor.value is False and "actor.compile=null does not compile them" in actor.reason
    values = resolved_values(loaded("ppo", *words), plan.auto)
    assert values["ref"]["compile"] == {"fullgraph": False, "required": False}
    for own, gpus in ((("actor.compile=null",), 2), (("actor.compile.fullgraph=true",), 2), ((), 0)):
        assert "actor.compile.required" not in autos(plan_of("grpo", *QWEN, *own, gpus=gpus))


def test_layers_of_a_small_model_are_not_compiled():
    plan = plan_of("ppo", gpus=1)
    chosen = {key: each for key, each in autos(plan).items() if ".compile" in key}
    assert {key: each.value for key, each in chosen.items()} == {"actor.compile": None, "critic.compile": None}
    assert "compiling takes longer than it saves" in chosen["actor.compile"].reason
    assert resolved_values(loaded("ppo"), plan.auto)["actor"]["compile"] is None
    own = plan_of("grpo", "actor.compile.fullgraph=false", gpus=1)
    assert not [key for key in autos(own) if ".compile" in key]


@pytest.mark.parametrize(("gpu_gib", "gpus"), [(24, 1), (24, 2), (40, 1), (80, 2)])
def test_reasons_and_memory_give_a_rank_the_same_size(gpu_gib, gpus):
    plan = plan_of("grpo", "actor=qwen2_5_1_5b", *QWEN[1:], host=machine(gpu_gib, gpus))
    assert plan.memory.trainer_rank_bytes is not None
    size = size_text(plan.memory.trainer_rank_bytes)
    assert f"beside {size} of models" in autos(plan)[LIMIT].reason


@pytest.mark.parametrize(("gpu_gib", "key"), [(40, "embedded.kv_cache_tokens"), (80, None)])
def test_a_cache_for_one_sequence_at_a_time_is_a_warning(gpu_gib, key):
    plan = plan_of("grpo", "actor=qwen2_5_1_5b", *QWEN[1:], host=machine(gpu_gib))
    serial = [warning for warning in plan.warnings if "generation is nearly serial" in warning]
    assert [warning.partition(":")[0] for warning in serial] == ([key] if key else [])
    if serial:
        assert "holds 1,184 tokens, one sequence of the greatest length (1,056), and 256 are wanted" in serial[0]
        assert "raise it (28.9 MiB for each sequence)" in serial[0]
