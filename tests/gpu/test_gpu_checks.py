"""The script for a GPU works: here on a CPU, with tiny sizes. What it measures there is not judged."""

import json
import sys
from typing import Any

import pytest
import torch

from tests.gpu import check_gpu
from tests.gpu.models import QWEN3_0_6B
from tests.gpu.throughput import PUBLISHED, flops_per_token, peak_flops, throughput

CPU = torch.device("cpu")
COMPILED = [name for name in check_gpu.CHECKS if "compiled" in name]
DONE = {"passed": True}


def test_utilisation_is_reckoned_as_it_is_published() -> None:
    """11.9k tokens/s of a Qwen3-0.6B at 16k tokens are said to be 11.1% of an H100."""
    peak = peak_flops("NVIDIA H100 80GB HBM3")
    assert peak is not None
    published = PUBLISHED["tokens_per_s"] * flops_per_token(QWEN3_0_6B, [16384]) / peak
    assert published == pytest.approx(PUBLISHED["mfu"], rel=0.01)


def test_short_sequences_want_less_attention() -> None:
    together, alone = flops_per_token(QWEN3_0_6B, [2048] * 8), flops_per_token(QWEN3_0_6B, [2048])
    assert together == alone
    attention = flops_per_token(QWEN3_0_6B, [16384]) - alone
    assert attention == 6.0 * 28 * 16 * 128 * (16384 - 2048)


def test_a_device_that_is_not_known_has_no_utilisation() -> None:
    assert peak_flops("NVIDIA GeForce GTX 1080") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12


@pytest.mark.parametrize("name", [name for name in check_gpu.CHECKS if name not in COMPILED])
def test_each_check_runs_and_passes_on_a_cpu(name: str) -> None:
    found = check_gpu.run({name: check_gpu.CHECKS[name]}, CPU, small=True, budget_s=60)
    assert found[name]["passed"] is True, found
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler makes some by itself
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layers_too(name: str) -> None:
    assert check_gpu.run({name: check_gpu.CHECKS[name]}, CPU, small=True, budget_s=60)[name]["passed"] is True


def test_a_device_that_computes_something_else_is_found_out(monkeypatch) -> None:
    from areal_like.training import attention

    right = attention._sdpa
    monkeypatch.setattr(attention, "_sdpa", lambda *given, **more: 1.01 * right(*given, **more))
    chosen = {name: check_gpu.CHECKS[name] for name in ("parity with the CPU", "varlen attention")}
    found = check_gpu.run(chosen, CPU, small=True, budget_s=60)
    assert [row["passed"] for row in found.values()] == [False, False]


def test_a_check_that_breaks_off_is_told_and_the_others_run(capsys) -> None:
    def broken(*_: Any) -> dict[str, Any]:
        raise RuntimeError("no such kernel\nat all")

    found = check_gpu.run({"one": broken, "two": lambda *_: dict(DONE)}, CPU, small=True, budget_s=60)
    assert found["one"]["passed"] is False and found["one"]["error"] == "RuntimeError: no such kernel\nat all"
    assert found["two"]["passed"] is True
    said = capsys.readouterr()
    assert "FAILED one" in said.out and "ok     two" in said.out and "Traceback" in said.err


def test_no_check_begins_when_its_time_is_over() -> None:
    found = check_gpu.run({"one": lambda *_: dict(DONE)}, CPU, small=True, budget_s=-1)
    assert found["one"]["passed"] is None and "left out" in found["one"]["error"]


def test_the_script_keeps_machine_and_versions_and_tells_failure_by_its_code(tmp_path, monkeypatch, capsys) -> None:
    output = tmp_path / "new" / "checks.json"
    for passed, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(check_gpu, "CHECKS", {"one": lambda *_, passed=passed: {"passed": passed}})
        monkeypatch.setattr(sys, "argv", ["check_gpu.py", "--small", "--output", str(output)])
        assert check_gpu.main() == code
    found = json.loads(output.read_text())
    assert {"device", "python", "torch", "transformers", "commit"} <= found["machine"].keys()
    assert found["published"]["mfu"] == 0.111 and found["small"] is True
    assert str(output) in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_only_tiny_sizes_are_tried(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    with pytest.raises(SystemExit) as ended:
        check_gpu.main()
    assert ended.value.code == 2 and "--small" in capsys.readouterr().err


def test_tiny_sizes_keep_the_proportions_of_the_lengths() -> None:
    found = throughput(CPU, True, check_gpu.SHORT)
    assert found["lengths"] == [8] * 8 and found["mfu"] is None
    assert found["tokens_per_s"] == pytest.approx(64 / found["step_s"])


@pytest.mark.xdist_group("embedded")
@pytest.mark.slow
def test_the_checks_of_servers_run_and_pass_on_a_cpu(tmp_path, monkeypatch, capsys) -> None:
    from tests.gpu import check_serving

    output = tmp_path / "serving.json"
    monkeypatch.setattr(sys, "argv", ["check_serving.py", "--small", "--engine", "embedded", "--output", str(output)])
    assert check_serving.main() == 0, capsys.readouterr()
    found = json.loads(output.read_text())
    assert {row["passed"] for row in found["checks"].values()} == {True} and len(found["checks"]) == 5
    assert found["machine"]["engine"] == "embedded"
