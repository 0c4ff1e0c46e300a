"""The scripts for a GPU work: here on a CPU, with tiny sizes. Speed is not checked."""

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


def test_utilisation_uses_the_published_formula() -> None:
    """11.9k tokens/s of a Qwen3-0.6B at 16k tokens were published as 11.1% of an H100."""
    peak = peak_flops("NVIDIA H100 80GB HBM3")
    assert peak is not None
    published = PUBLISHED["tokens_per_s"] * flops_per_token(QWEN3_0_6B, [16384]) / peak
    assert published == pytest.approx(PUBLISHED["mfu"], rel=0.01)


def test_short_sequences_need_less_attention() -> None:
    together, alone = flops_per_token(QWEN3_0_6B, [2048] * 8), flops_per_token(QWEN3_0_6B, [2048])
    assert together == alone
    attention = flops_per_token(QWEN3_0_6B, [16384]) - alone
    assert attention == 6.0 * 28 * 16 * 128 * (16384 - 2048)


def test_an_unknown_device_has_no_utilisation() -> None:
    assert peak_flops("NVIDIA GeForce GTX 1080") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12


@pytest.mark.parametrize("name", [name for name in check_gpu.CHECKS if name not in COMPILED])
def test_each_check_runs_and_passes_on_a_cpu(name: str) -> None:
    results = check_gpu.run({name: check_gpu.CHECKS[name]}, CPU, small=True, budget_s=60)
    assert results[name]["passed"] is True, results
    assert json.loads(json.dumps(results)) == json.loads(json.dumps(results, allow_nan=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler emits some
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layers_pass_on_a_cpu(name: str) -> None:
    assert check_gpu.run({name: check_gpu.CHECKS[name]}, CPU, small=True, budget_s=60)[name]["passed"] is True


def test_a_device_that_computes_wrong_numbers_fails_its_checks(monkeypatch) -> None:
    from areal_like.training import attention

    right = attention._sdpa
    monkeypatch.setattr(attention, "_sdpa", lambda *given, **more: 1.01 * right(*given, **more))
    chosen = {name: check_gpu.CHECKS[name] for name in ("parity with the CPU", "varlen attention")}
    results = check_gpu.run(chosen, CPU, small=True, budget_s=60)
    assert [row["passed"] for row in results.values()] == [False, False]


def test_a_check_that_raises_is_reported_and_the_others_run(capsys) -> None:
    def broken(*_: Any) -> dict[str, Any]:
        raise RuntimeError("no such kernel\nat all")

    results = check_gpu.run({"one": broken, "two": lambda *_: dict(DONE)}, CPU, small=True, budget_s=60)
    assert results["one"]["passed"] is False and results["one"]["error"] == "RuntimeError: no such kernel\nat all"
    assert results["two"]["passed"] is True
    printed = capsys.readouterr()
    assert "FAILED one" in printed.out and "ok     two" in printed.out and "Traceback" in printed.err


def test_no_check_begins_after_the_time_limit() -> None:
    results = check_gpu.run({"one": lambda *_: dict(DONE)}, CPU, small=True, budget_s=-1)
    assert results["one"]["passed"] is None and "left out" in results["one"]["error"]


def test_the_script_records_machine_and_versions_and_exits_1_on_failure(tmp_path, monkeypatch, capsys) -> None:
    output = tmp_path / "new" / "checks.json"
    for passed, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(check_gpu, "CHECKS", {"one": lambda *_, passed=passed: {"passed": passed}})
        monkeypatch.setattr(sys, "argv", ["check_gpu.py", "--small", "--output", str(output)])
        assert check_gpu.main() == code
    results = json.loads(output.read_text())
    assert {"device", "python", "torch", "transformers", "commit"} <= results["machine"].keys()
    assert results["published"]["mfu"] == 0.111 and results["small"] is True
    assert str(output) in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_only_tiny_sizes_run(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    with pytest.raises(SystemExit) as ended:
        check_gpu.main()
    assert ended.value.code == 2 and "--small" in capsys.readouterr().err


def test_tiny_sizes_keep_the_proportions_of_the_lengths() -> None:
    result = throughput(CPU, True, check_gpu.SHORT)
    assert result["lengths"] == [8] * 8 and result["mfu"] is None
    assert result["tokens_per_s"] == pytest.approx(64 / result["step_s"])


@pytest.mark.xdist_group("embedded")
@pytest.mark.slow
def test_the_checks_of_servers_run_and_pass_on_a_cpu(tmp_path, monkeypatch, capsys) -> None:
    from tests.gpu import check_serving

    output = tmp_path / "serving.json"
    monkeypatch.setattr(sys, "argv", ["check_serving.py", "--small", "--engine", "embedded", "--output", str(output)])
    assert check_serving.main() == 0, capsys.readouterr()
    results = json.loads(output.read_text())
    assert {row["passed"] for row in results["checks"].values()} == {True} and len(results["checks"]) == 5
    assert results["machine"]["engine"] == "embedded"
