"""Runs for measurement: `bench`, and a trainer alone on random tokens."""

import pytest

from tests.ring.start import SHORT, left_behind, run

pytestmark = pytest.mark.xdist_group("ring-1")


def test_bench_runs_a_few_steps_and_prints_a_table(tmp_path):
    ended = run(tmp_path, *SHORT, "bench=true")
    assert ended.code == 0, ended.text
    assert "Error" not in ended.out and ended.err == "", ended.text
    assert [line["step"] for line in ended.lines("metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert list((ended.directory / "checkpoints").iterdir()) == []
    assert not [event for event in ended.ledger() if event["event"] == "evaluated"]
    lines = ended.out.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.split()[:3] == ["step", "step", "s"]]
    assert "generated/s" in lines[head] and "memory GB" in lines[head]
    assert [line.split()[0] for line in lines[head + 2 : head + 6]] == ["2", "3", "4", "5"]
    assert [line.split()[0] for line in lines[head + 7 : head + 11]] == ["mean", "std", "min", "max"]
    steps = ended.metric("perf/tokens_per_s")[1:]
    assert ended.summary["throughput"]["perf/tokens_per_s"] == pytest.approx(sum(steps) / 4)
    assert ended.summary["objective_metric"] == "perf/tokens_per_s"
    assert "bench" not in lines[-1] and lines[-1].startswith("train ")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_trainer_on_random_tokens_is_all_that_is_started(ranks, tmp_path):
    fake = ("train_dataset.fake.batch_size=4", "train_dataset.fake.seq_len=32", "valid_dataset=null")
    ended = run(tmp_path, *fake, "total_train_steps=3", f"actor.backend=fsdp:d{ranks}", "evaluator.freq_steps=null")
    assert ended.code == 0, ended.text
    assert ended.metric("train/tokens") == [128.0] * 3
    logs = {path.stem for path in (ended.directory / "logs").glob("*.log")}
    assert logs == {f"trainer-{rank}" for rank in range(ranks)}
    assert "tokens/s, " in ended.out and "(mean of 2 steps after the first)" in ended.out
    assert "chat" not in ended.out, "there is no model to chat with"
    assert left_behind(ended.directory, set()) == []
