"""Random tokens in place of data: the trainer runs alone."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.run import Run
from areal_like.training import main as trainer
from areal_like.training.batch import SAMPLER, VERSIONS, TrainingBatch
from areal_like.training.controller_client import NoMoreBatches
from areal_like.training.fake_data import FakeController
from areal_like.training.stop import StopRequest
from launcher.commands.run import refuse
from tests.support.planning import loaded, of_role, plan_of
from tests.support.training_runs import ME, make_run, metrics_of, world

FAKE = ("train_dataset.fake.batch_size=6", "train_dataset.fake.seq_len=20", "total_train_steps=3")
PLAIN = ("recover.mode=disabled", "saver.freq_steps=null")


def trained(run: Run) -> list[dict[str, Any]]:
    """What a trainer process of this run does once it has met the others; its metrics, step by step."""
    work = trainer._reinforcement if hasattr(run.config, "actor") else trainer._supervised
    assert work(run, ME, world(), StopRequest(world())) == 0
    return metrics_of(run)


@pytest.mark.shows("train_dataset.fake")
@pytest.mark.parametrize("kind", ["grpo", "ppo", "sft"])
def test_a_step_trains_on_fake_rows(tmp_path, kind):
    """With the configured sizes, and without the file's data, a controller, or weights for servers."""
    nothing = [f"{name}_dataset.path=nowhere.jsonl" for name in ("train", "valid")]
    run = make_run(tmp_path / "run", kind, *FAKE, *PLAIN, *nothing, "task.name=null")
    lines = [line for line in trained(run) if "train/loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert (line["train/samples"], line["train/tokens"], line["train/loss_tokens"]) == (6, 6 * 20, 6 * 19)
        assert line["perf/tokens_per_s"] > 0 and line["train/skipped_updates"] == 0
        assert line.get("train/sequences_without_signal", 0) == 0, "all of it is computed"
    assert not run.memory.exists() and not run.weights.exists()


@pytest.mark.shows("actor.kl_ctl")
def test_a_run_measures_the_distance_to_the_reference_if_kl_ctl_is_set(tmp_path):
    distances = {}
    for weight in (0, 0.2):
        run = make_run(tmp_path / str(weight), "grpo", *FAKE, *PLAIN, f"actor.kl_ctl={weight}")
        distances[weight] = [line["train/kl_ref"] for line in trained(run) if "train/kl_ref" in line]
    assert distances[0] == []
    assert distances[0.2][0] == pytest.approx(0, abs=1e-6) and distances[0.2][2] > 0


@pytest.mark.shows("train_dataset.fake.{key}")
@pytest.mark.parametrize(
    ("key", "name"), [("batch_size", "train/samples"), ("seq_len", "train/tokens")], ids=["batch_size", "seq_len"]
)
def test_a_key_of_fake_is_a_size_of_a_step(tmp_path, key, name):
    actual = []
    for value in (4, 8):
        run = make_run(tmp_path / str(value), "grpo", *FAKE, *PLAIN, f"train_dataset.fake.{key}={value}")
        actual.append(trained(run)[0][name])
    assert actual[1] == 2 * actual[0]


def test_fake_rows_are_evaluated_if_configured(tmp_path):
    overrides = ("valid_dataset.fake.batch_size=5", "valid_dataset.fake.seq_len=12", "valid_dataset.path=nowhere.jsonl")
    for number, words in enumerate([FAKE, ("total_train_steps=2", "train_dataset.batch_size=4")]):
        run = make_run(tmp_path / str(number), "sft", *words, *PLAIN, *overrides, "evaluator.freq_steps=1")
        evaluated = [line for line in trained(run) if "eval/loss" in line]
        assert len(evaluated) == run.config.total_train_steps
        assert {line["eval/samples"] for line in evaluated} == {5}
        assert all(2 < line["eval/loss"] < 20 for line in evaluated), "as bad as random tokens are"


def test_a_run_on_random_tokens_is_resumed_like_any_other(tmp_path):
    run = make_run(tmp_path / "run", "sft", *FAKE, "recover.freq_steps=2", "valid_dataset=null")
    whole = trained(run)
    (run.metrics / "trainer-0.jsonl").unlink()
    attempt = {"attempt": 2, "step": 2, "checkpoint": str(run.checkpoints / "step_000002")}
    (run.directory / "attempt.json").write_text(str(attempt).replace("'", '"'))
    (again,) = trained(run)
    assert again["step"] == 3
    assert again["train/loss"] == whole[-1]["train/loss"]


def batches(size: int, *words: str, step: int = 0) -> list[TrainingBatch]:
    """Of all ranks."""
    config = loaded("grpo", *FAKE, *words).config
    actual = []
    for rank in range(size):
        engine: Any = SimpleNamespace(vocab_size=40, world=SimpleNamespace(rank=rank, size=size))
        batch = FakeController(config, engine).batch(step)
        assert not isinstance(batch, NoMoreBatches)
        actual.append(batch)
    return actual


def test_a_batch_does_not_depend_on_the_number_of_ranks():
    (whole,) = batches(1)
    for size in (2, 4):
        parts = batches(size)
        assert sorted(row for part in parts for row in part.mine_N.tolist()) == list(range(6))
        for part in parts:
            assert part.rewards_A.tolist() == whole.rewards_A.tolist()
            for place, row in enumerate(part.mine_N.tolist()):
                mine, his = slice(20 * place, 20 * place + 20), slice(20 * row, 20 * row + 20)
                assert np.array_equal(part.sequences.token_ids[mine], whole.sequences.token_ids[his])
                for name in (SAMPLER, VERSIONS):
                    assert np.array_equal(part.sequences.fields[name][mine], whole.sequences.fields[name][his])
    assert not np.array_equal(batches(1, step=1)[0].sequences.token_ids, whole.sequences.token_ids)
    assert not np.array_equal(batches(1, "seed=9")[0].sequences.token_ids, whole.sequences.token_ids)


@pytest.mark.parametrize(("size", "n_samples", "groups"), [(6, 8, 1), (6, 2, 3), (7, 2, 3), (5, 1, 2)])
def test_every_group_has_two_sequences_to_compare(size, n_samples, groups):
    (batch,) = batches(1, f"train_dataset.fake.batch_size={size}", f"gconfig.n_samples={n_samples}")
    counts = np.bincount(batch.groups_A)
    assert (len(counts), batch.num_groups) == (groups, groups)
    assert counts.min() >= 2


# What is planned


@pytest.mark.parametrize("kind", ["grpo", "ppo", "sft"])
def test_no_server_controller_or_worker_is_planned(kind):
    plan = plan_of(kind, *FAKE, "valid_dataset=null", gpus=2)
    assert plan.cannot_start == ()
    assert {process.role for process in plan.processes} == {"guardian", "launcher", "trainer"}
    assert "6 random sequences (train_dataset.fake.batch_size)" in plan.batch.words[0]
    assert plan.batch.words[-1] == "the run ends after 3 steps (total_train_steps), 18 samples"
    if kind != "sft":
        assert "no servers" in plan.batch.words[1]
    assert plan.servers["started"] == 0 and plan.memory.server is None


def test_with_fake_data_the_trainer_gets_all_gpus():
    plan = plan_of("grpo", *FAKE, "actor.backend=fsdp", gpus=4)
    assert [process.gpus for process in of_role(plan, "trainer")] == [(number,) for number in range(4)]


@pytest.mark.parametrize(
    ("kind", "words", "key", "message"),
    [
        ("grpo", ("actor.backend=fsdp:d8",), "train_dataset.fake.batch_size", "6 sequences for 8 ranks"),
        ("sft", ("model.backend=fsdp:d8",), "train_dataset.fake.batch_size", "6 sequences for 8 ranks"),
        ("sft", ("total_train_steps=null",), "total_train_steps", "never end; set it"),
        ("grpo", ("train_dataset.fake.batch_size=1",), "train_dataset.fake.batch_size", "use at least 2"),
        ("grpo", ("valid_dataset.fake.seq_len=8",), "valid_dataset.fake", "set it to null"),
        ("reward_model", (), "train_dataset.fake", "set it to null"),
    ],
)
def test_settings_that_need_real_data_are_refused(kind, words, key, message):
    reasons = {obstacle.key: obstacle.message for obstacle in plan_of(kind, *FAKE, *words).cannot_start}
    assert message in reasons[key]


def test_refused_random_tokens_name_the_source_of_the_setting():
    experiment = loaded("reward_model", *FAKE)
    with pytest.raises(ConfigError) as refused:
        refuse(plan_of("reward_model", *FAKE).problems)
    places = {problem.key: problem.where for problem in refused.value.problems}
    assert places["train_dataset.fake"] == experiment.origin("train_dataset.fake.seq_len").where != "default"


def test_a_trainer_that_is_started_by_hand_refuses_too_few_sequences_too():
    with pytest.raises(ConfigError, match=r"^train_dataset\.fake\.batch_size.*every rank needs at least one"):
        batches(7)


def test_data_keys_beside_random_tokens_are_warnings():
    warnings = [warning for warning in plan_of("sft", *FAKE).warnings if warning.startswith("valid_dataset: ")]
    assert warnings == ["valid_dataset: has no effect beside train_dataset.fake, which replaces all data"]


def test_settings_refused_for_servers_are_accepted_without_servers():
    words = ("rollout.backend=vllm:d1", "gconfig.top_p=0.9", "gconfig.n_samples=1", "valid_dataset=null")
    assert plan_of("grpo", *FAKE, *words).cannot_start == ()
