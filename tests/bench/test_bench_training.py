"""The benchmark of training evaluates its numbers correctly, and runs. Times are not checked."""

import json
import math
import sys
from typing import Any

import pytest
import torch

from tests.bench import bench_training, training_logprobs, training_packing, training_trainer


def results(packed: float = 3.0, chunked_s: float = 1.0, memory_gb: float = 0.4) -> dict[str, Any]:
    step = {
        "model": "some",
        "tokens_per_s": {"transformers.Trainer": 100.0, "areal_like": 250.0},
        "times_faster": 2.5,
    }
    return {
        "packing": {
            "seconds": {"padded": packed, "packed": 1.0},
            "times_faster": packed,
            "largest_gradient_difference": 1e-7,
        },
        "logprobs": {
            "seconds": {"plain": 1.0, "chunked": chunked_s},
            "times_as_long": chunked_s,
            "extra_memory_gb": {"plain": 3.0, "chunked": memory_gb},
            "largest_difference": {"logprobs": 2e-7, "hidden": 3e-6, "head": 1e-8},
        },
        "step": [step],
    }


def test_a_missed_target_is_marked_in_its_line() -> None:
    report = bench_training.report(results(packed=2.4, chunked_s=1.2, memory_gb=0.6), 1, 3.0)
    assert [row["met"] for row in report["aims"].values()] == [False, False, False]
    lines = bench_training.table(report).splitlines()
    assert [line.endswith(": missed") for line in lines[1:4]] == [True, True, True]
    report = bench_training.report(results(), 1, 3.0)
    assert all(row["met"] for row in report["aims"].values())
    assert "missed" not in bench_training.table(report)


def test_the_table_has_every_ratio_and_the_largest_difference() -> None:
    lines = bench_training.table(bench_training.report(results(), 1, 3.0)).splitlines()
    assert lines[1].split()[-3:] == ["3", "1", "3.00"]
    assert lines[3].split()[-2:] == ["3", "0.4"]
    assert lines[4].startswith("Trainer's and our step, tokens/CPU s: some") and lines[4].split()[-1] == "2.50"
    assert lines[5].endswith(" 3.0e-06")


def test_lengths_are_spread_evenly_over_their_logarithm() -> None:
    lengths = training_packing.log_uniform(4000, 16, 512)
    assert min(lengths) == 16 and max(lengths) == 512
    middle = sum(math.log2(length) < 6.5 for length in lengths) / len(lengths)
    assert middle == pytest.approx(0.5, abs=0.03)
    few = training_packing.log_uniform(32, 16, 512)
    assert few == training_packing.log_uniform(32, 16, 512) and 0.2 < sum(few) / (32 * max(few)) < 0.5


def test_padded_and_packed_rows_give_the_same_gradients() -> None:
    row = training_packing.measure(4, 4, 16, repeats=2)
    assert row["largest_gradient_difference"] < 1e-5
    assert row["times_faster"] == row["seconds"]["padded"] / row["seconds"]["packed"]
    assert row["seconds"]["packed"] == min(row["runs_s"]["packed"]) and len(row["runs_s"]["padded"]) == 2


def test_the_memory_of_all_logits_is_measured() -> None:
    """Measured in a separate process, so that earlier allocations do not hide it."""
    sizes = (1024, 16384, 8)
    logits_gb = 1024 * 16384 * 4 / 1e9
    taken = training_logprobs._memory_gb("plain", *sizes)
    assert 2 * logits_gb < taken < 5 * logits_gb


def test_chunks_give_the_same_gradients() -> None:
    given = training_logprobs.inputs(64, 128, 16)
    gradients = []
    for way in ("plain", "chunked"):
        training_logprobs.run(way, *given)
        gradients.append([tensor.grad.clone() for tensor in given[:2] if tensor.grad is not None])
    for plain, chunked in zip(*gradients, strict=True):
        torch.testing.assert_close(chunked, plain, atol=1e-6, rtol=1e-5)


def test_the_trainer_does_the_same_work() -> None:
    """The same first loss: the same weights, tokens and mean."""
    row = training_trainer.measure("tiny", training_trainer.TINY, [4, 6, 9], steps=2)
    losses = row["first_loss"]
    assert losses["areal_like"] == pytest.approx(losses["transformers.Trainer"], abs=1e-4)
    assert {who: len(seconds) for who, seconds in row["runs_s"].items()} == {"transformers.Trainer": 2, "areal_like": 2}
    assert row["tokens"] == 19 and row["filled"] == pytest.approx(19 / 27)


def test_the_benchmark_writes_its_results_as_json(tmp_path, monkeypatch, capsys) -> None:
    output = tmp_path / "new" / "training.json"
    monkeypatch.setattr(sys, "argv", ["bench_training.py", "--output", str(output)])
    monkeypatch.setattr(bench_training, "measure", lambda small: results())
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    bench_training.main()
    report = json.loads(output.read_text(encoding="utf-8"))
    assert {"python", "torch", "transformers", "threads", "took_s", "aims", *results()} <= report.keys()
    assert str(output) in capsys.readouterr().out


@pytest.mark.slow
def test_chunks_take_less_than_half_a_gigabyte_where_all_logits_take_three() -> None:
    memory_gb = {way: training_logprobs._memory_gb(way, 4096, 65536, 256) for way in ("plain", "chunked")}
    assert memory_gb["plain"] > 2 and memory_gb["chunked"] < 0.5
