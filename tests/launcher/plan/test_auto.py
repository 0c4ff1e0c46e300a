"""The resolved value of every `auto`, with its reason."""

import pytest

from areal_like.config.attention import beyond_kernels, choose_attention
from areal_like.config.dotted_path import value_at
from areal_like.config.load import load
from launcher.plan.auto import resolved_values
from tests.support.planning import BIG_MODEL, ROOT, loaded, machine_with, plan_of

LEFT_TO_A_PROCESS = {"embedded.kv_cache_tokens"}
A_VALUE_ITSELF = {"recover.mode", "rollout.update_mode", "sglang.kv_cache_dtype"}
"""Here `auto` is no question but an answer, as in `watchdog`, whose limits grow with what a run shows."""


def autos(plan):
    return {resolved.key: resolved for resolved in plan.auto}


@pytest.mark.parametrize("experiment", ["grpo", "ppo", "sft", "reward_model"])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_auto_of_the_shipped_experiments_is_resolved_with_a_reason(experiment, gpus):
    plan = plan_of(experiment, gpus=gpus)
    values, resolved = loaded(experiment).values, autos(plan)
    served = "embedded" if experiment in ("grpo", "ppo") else None
    for path in loaded(experiment).schema.keys:
        follows = isinstance(loaded(experiment).get_raw(path), str) and "${" in loaded(experiment).get_raw(path)
        if value_at(values, path) != "auto" or path in A_VALUE_ITSELF or follows:
            continue
        section = path.partition(".")[0]
        unused = {
            "ref": experiment == "grpo",
            "embedded": served is None,
            "watchdog": True,
            "vllm": True,
            "sglang": True,
            "rollout": path == "rollout.server_type",
        }
        if unused.get(section, False):
            continue
        assert path in resolved, path
        assert resolved[path].reason
        assert resolved[path].value != "auto" or path in LEFT_TO_A_PROCESS


def test_explicit_values_are_not_changed():
    overrides = ("actor.attn_impl=sdpa", "rollout.num_episode_workers=3", "cluster.n_gpus_per_node=2", "trial_name=t")
    plan = plan_of("grpo", *overrides, "embedded.device=cuda", "embedded.threads=2", gpus=2)
    assert not set(autos(plan)) & {
        *("actor.attn_impl", "rollout.num_episode_workers", "cluster.n_gpus_per_node", "trial_name"),
        *("embedded.device", "embedded.threads"),
    }
    assert sum(process.role == "episodes" for process in plan.processes) == 3


CUDNN = "cuDNN, from 9.15.1 on, for micro-batches of one sequence, or of equal lengths, of 1,024 tokens or more; flash"


@pytest.mark.parametrize(
    ("dtype", "gpus", "packages", "expected", "why"),
    [
        ("bfloat16", [], {"flash_attn"}, "sdpa", "no GPU"),
        ("bfloat16", ["NVIDIA A100-SXM4-80GB"], {"flash_attn"}, "sdpa", "flash kernel"),
        ("bfloat16", ["NVIDIA H200"], {"flash_attn", "flash_attn_interface"}, "flash_attention_3", "H200 can run it"),
        ("bfloat16", ["NVIDIA H200", "NVIDIA A100"], {"flash_attn", "flash_attn_interface"}, "sdpa", "flash kernel"),
        ("bfloat16", ["NVIDIA H200"], set(), "sdpa", CUDNN),
        ("bfloat16", ["NVIDIA B200"], {"flash_attn_interface"}, "sdpa", CUDNN),
        ("float32", ["NVIDIA H200"], {"flash_attn"}, "sdpa", "memory-efficient"),
    ],
)
def test_attention_is_the_fastest_available(dtype, gpus, packages, expected, why):
    value, reason = choose_attention(dtype, gpus, packages)
    assert value == expected and why in reason


@pytest.mark.parametrize(
    ("model", "disable_dropout", "beyond"),
    [
        ({"attn_logit_softcapping": 50.0}, True, "caps its attention scores"),
        ({"text_config": {"attn_logit_softcapping": 50.0}}, True, "caps its attention scores"),
        ({"attention_dropout": 0.1}, False, "uses attention dropout"),
        ({"attention_dropout": 0.1}, True, ""),
        ({"attention_dropout": 0.0, "attn_logit_softcapping": None}, False, ""),
        (None, False, ""),
    ],
)
def test_a_model_beyond_the_kernels_of_torch_takes_flash_attn_where_it_is(model, disable_dropout, beyond):
    assert beyond_kernels(model, disable_dropout) == beyond
    chosen = {
        name: choose_attention("bfloat16", ["NVIDIA H100"], packages, beyond)
        for name, packages in {"with": {"flash_attn", "flash_attn_interface"}, "without": set()}.items()
    }
    assert chosen["with"][0] == ("flash_attention_2" if beyond else "flash_attention_3")
    assert chosen["without"][0] == "sdpa" and beyond in chosen["without"][1]


def test_the_resolved_attention_is_in_the_plan(tmp_path):
    there = autos(plan_of("grpo", "actor.dtype=bfloat16", gpus=1))["actor.attn_impl"]
    assert there.value == "sdpa" and CUDNN in there.reason
    (tmp_path / "config.json").write_text('{"attn_logit_softcapping": 50.0}')
    capped = autos(plan_of("grpo", "actor.dtype=bfloat16", f"actor.path={tmp_path}", gpus=1))["actor.attn_impl"]
    assert capped.value == "flash_attention_2" and "caps its attention scores" in capped.reason


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (4, 1), (16, 4), (200, 8)])
def test_the_number_of_episode_workers_depends_on_cores(cores, workers):
    assert autos(plan_of("grpo", cores=cores))["rollout.num_episode_workers"].value == workers


def test_episode_workers_are_limited_by_the_number_of_prompts():
    plan = plan_of("grpo", "train_dataset.batch_size=2", cores=64)
    assert autos(plan)["rollout.num_episode_workers"].value == 2


@pytest.mark.parametrize(
    ("cores", "words", "processes"),
    [
        (1, (), 2),
        (16, (), 4),
        (64, (), 4),
        (12, ("rollout.num_episode_workers=4",), 3),
        (4, ("cluster.type=slurm",), 4),
    ],
)
def test_the_number_of_reward_processes_depends_on_the_cores_of_a_worker(cores, words, processes):
    assert autos(plan_of("grpo", *words, cores=cores))["reward.processes"].value == processes


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (2, "cuda")])
def test_the_embedded_engine_uses_its_assigned_gpu(gpus, device):
    assert autos(plan_of("grpo", gpus=gpus))["embedded.device"].value == device


def test_the_embedded_engine_has_its_share_of_threads():
    plan = plan_of("grpo", cores=16)
    server = next(process for process in plan.processes if process.role == "server")
    assert autos(plan)["embedded.threads"].value == server.threads == len(server.cores)


def test_the_embedded_cache_holds_all_requests_or_fills_the_memory(tmp_path):
    from tests.launcher.plan.test_memory import QWEN3_06B, model_folder

    folder = model_folder(tmp_path / "m", QWEN3_06B)
    base = (f"actor.path={folder}", "embedded.max_running_requests=4")
    small = autos(plan_of("grpo", *base, "gconfig.max_tokens=100"))["embedded.kv_cache_tokens"]
    assert small.value == 400
    large = autos(plan_of("grpo", *base, "gconfig.max_tokens=40000"))["embedded.kv_cache_tokens"]
    assert 40000 <= large.value < 160000
    assert "a quarter of main memory" in large.reason


def test_automatic_backends_have_a_reason():
    resolved = autos(plan_of("grpo", "rollout.backend=auto", *BIG_MODEL, gpus=8))
    assert resolved["rollout.backend"].value == "vllm:d4"
    assert "GPU" in resolved["rollout.backend"].reason
    assert resolved["allocation_mode"].value == "vllm:d4+fsdp:d4"


def test_engines_of_attached_servers_are_detected():
    assert "rollout.server_type" in autos(plan_of("grpo", "rollout.server_addresses=['h:1']"))


def test_references_to_an_auto_value_take_the_resolved_value():
    configuration = loaded("ppo")
    values = resolved_values(configuration, plan_of("ppo").auto)
    assert values["trial_name"] == values["saver"]["trial_name"] == values["critic"]["trial_name"] == "r0001"
    assert values["actor"]["attn_impl"] == values["critic"]["attn_impl"] == values["ref"]["attn_impl"] == "sdpa"
    untouched = ("experiment_name", "total_train_steps", "gconfig", "evaluator.freq_steps", "actor.optimizer")
    assert all(value_at(values, path) == configuration.get(path) for path in untouched)


def test_resolved_values_compose_to_the_same_run(tmp_path):
    """What the run's config.yaml will say means the same plan."""
    plan = plan_of("grpo", "trial_name=t", cores=8)
    before = loaded("grpo", "trial_name=t")
    values = resolved_values(before, plan.auto)
    assert values["rollout"]["num_episode_workers"] == 2
    assert before.values["rollout"]["num_episode_workers"] == "auto"
    words = [f"{resolved.key}={resolved.value}" for resolved in plan.auto]
    again = load(ROOT / "experiments" / "grpo.yaml", ["trial_name=t", *words])
    from launcher.plan.build import build_plan

    replanned = build_plan(again, host=machine_with(0, 8))
    assert replanned.processes[2:] == plan.processes[2:]
    assert not replanned.cannot_start
