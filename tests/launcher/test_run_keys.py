"""Effects of keys on whole runs: length, order of rows, intervals, folders."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.discovery import name_store_for
from areal_like.models.characters import write_tokenizer
from areal_like.process.interval_timer import IntervalTimer
from areal_like.process.run import Run
from areal_like.rollout.settings import rollout_settings, run_length
from areal_like.training import checkpoint, supervised
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.main import load_trained_engine
from areal_like.training.reward_model import RewardModelLearner
from areal_like.training.stop import StopRequest
from areal_like.training.supervised import SupervisedLearner
from areal_like.training.supervised_data import SupervisedData
from launcher.plan.render import render
from launcher.supervisor.restart_policy import RestartPolicy
from tests.launcher.plan.test_run_directory import made
from tests.support.planning import loaded, plan_of
from tests.support.rollout_world import World
from tests.support.training_runs import EXPERIMENTS, ME, make_run, metrics_of, world

SUPERVISED = {"sft": SupervisedLearner, "reward_model": RewardModelLearner}
RUNS = ("grpo", "ppo", *SUPERVISED)
ROWS = "".join(
    f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}", "chosen": "{2 * n}", "rejected": "{2 * n + 1}"}}\n'
    for n in range(40)
)


def messages(kind: str, *overrides: str) -> Any:
    """A shipped experiment that generates."""
    return load(EXPERIMENTS / f"{kind}.yaml", ["rollout.backend=embedded", *overrides]).config


def of_40_rows(folder: Path, kind: str, *overrides: str, valid: str | None = None) -> Run:
    """A supervised run on 40 generated rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text(ROWS)
    own = ("train_dataset.path=rows.jsonl", "task.name=null", "train_dataset.batch_size=8")
    return make_run(folder, kind, *own, f"valid_dataset.path={valid}" if valid else "valid_dataset=null", *overrides)


def in_epochs(folder: Path, kind: str, *overrides: str) -> int:
    """Steps of a run on 40 rows, 8 to a step."""
    if kind in SUPERVISED:
        return int(SupervisedData(of_40_rows(folder, kind, *overrides)).length.total_steps)
    message = rollout_settings(messages(kind, "train_dataset.batch_size=8", "gconfig.n_samples=4", *overrides))
    return run_length(message, rows=40).total_steps


LONG = ("total_train_epochs=9", "total_train_steps=null", "total_train_n_seqs=null")


@pytest.mark.shows("total_train_epochs")
@pytest.mark.parametrize("kind", RUNS)
def test_total_train_epochs_ends_the_run(tmp_path, kind):
    assert in_epochs(tmp_path / "9", kind, *LONG) == 45
    assert in_epochs(tmp_path / "2", kind, *LONG, "total_train_epochs=2") == 10


@pytest.mark.shows("total_train_steps")
@pytest.mark.parametrize("kind", RUNS)
def test_total_train_steps_ends_the_run(tmp_path, kind):
    assert in_epochs(tmp_path, kind, *LONG, "total_train_steps=7") == 7


@pytest.mark.shows("total_train_n_seqs")
@pytest.mark.parametrize(("kind", "steps"), [("grpo", 2), ("ppo", 2), ("sft", 8), ("reward_model", 4)], ids=RUNS)
def test_total_train_n_seqs_ends_the_run(tmp_path, kind, steps):
    """A prompt has 4 answers, a row is one, and a pair two."""
    assert in_epochs(tmp_path, kind, *LONG, "total_train_n_seqs=64") == steps


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ((), 1),
        (("task=null", "environments.train=[{id: addition}, {id: countdown}]"), 1),
        (("task=null", "environments.train=[{id: addition}, {id: countdown, workflow: {name: single_turn}}]"), 2),
    ],
)
def test_each_conversation_of_a_sample_counts_in_total_train_n_seqs(tmp_path, overrides, steps):
    """Where environments differ, the run does not end before it is reached."""
    tries = ("workflow.name=multi_turn", "+workflow.args.n_trajs=2", "total_train_n_seqs=64")
    assert in_epochs(tmp_path, "grpo", *LONG, *tries, *overrides) == steps


def order_of(folder: Path, kind: str, seed: int) -> Any:
    if kind in SUPERVISED:
        return next(SupervisedData(of_40_rows(folder, kind, f"seed={seed}")).batches(0)).sequences.token_ids.tolist()
    one = World(rollout_settings(messages(kind, f"seed={seed}", "rollout.max_head_offpolicyness=1")), rows=4000)
    one.load()
    return [(lease.group.row, lease.group.seed) for lease in one.lease()]


@pytest.mark.shows("seed")
@pytest.mark.parametrize("kind", RUNS)
def test_seed_decides_the_order_of_rows(tmp_path, kind):
    one, again, other = (order_of(tmp_path / name, kind, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert one == again != other


@pytest.mark.shows("tokenizer_path")
@pytest.mark.parametrize("kind", SUPERVISED)
def test_tokenizer_path_selects_the_tokenizer(tmp_path, kind):
    """By a tokenizer with two of its tokens exchanged."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_tokenizer(folder, 64)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"1"', '"one"').replace('"2"', '"1"').replace('"one"', '"2"'))
    key = f"tokenizer_path={folder}"

    def ids(*overrides: str) -> list[int]:
        data = SupervisedData(of_40_rows(tmp_path / "run", kind, "train_dataset.shuffle=false", *overrides))
        *_, row = islice(data.train.batches(1, most=13), 13)
        return [int(token) for token in row.token_ids[:8]]

    usual, swapped = ids(), ids(key)
    assert len(usual) == len(swapped) == 8
    one, two = usual[:2]
    assert swapped == [{one: two, two: one}.get(token, token) for token in usual]


# Clocks


class Ticking(IntervalTimer):
    """Every step takes 10 s."""

    def __init__(self, config: Any, steps_per_epoch: int) -> None:
        self.time = 0.0
        super().__init__(config, steps_per_epoch, lambda: self.time)

    def is_due(self, step: int) -> bool:
        self.time = 10.0 * step
        return super().is_due(step)


def kept(section: str, run: Run, kind: str) -> list[int]:
    """Steps (of nine, five per epoch) after which a checkpoint is due to be kept, or to resume from."""
    due = CheckpointManager(run, world(), 5).due
    result = {step: due(step, is_last=False) for step in range(1, 10)}
    return [step for step, each in result.items() if (each.to_keep if section == "saver" else each.to_resume)]


def evaluated(section: str, run: Run, kind: str) -> list[int]:
    """After which steps there is an evaluation; the last of ten has one in any case."""
    if kind in SUPERVISED:
        learner = SUPERVISED[kind](load_trained_engine(run, run.config.model, "model", world()), run.config.seed)
        supervised.train(run, ME, world(), learner, SupervisedData(run), StopRequest(world()))
        return sorted(line["step"] for line in metrics_of(run) if "eval/loss" in line)[:-1]
    message = replace(rollout_settings(run.config), batch_size=4, n_samples=2, num_servers=1, max_concurrent=4)
    ring = World(replace(message, synchronous=True, max_staleness=0, total_epochs=2, max_steps=10), 20, valid_rows=2)
    versions = []
    for _ in range(60):
        ring.load_all()
        versions += [lease.group.evaluation for lease in ring.lease() if lease.group.evaluation]
        ring.finish_all()
        if ring.fetch() is not None:
            ring.time += 10
            ring.train()
    return sorted({*versions} - {10})


CLOCKS = {"freq_epochs": (1, [5]), "freq_steps": (3, [3, 6, 9]), "freq_secs": (40, [4, 8])}
SECTIONS = {"saver": kept, "recover": kept, "evaluator": evaluated}


@pytest.mark.shows("{key}")
@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("key", [f"{section}.{clock}" for section in SECTIONS for clock in CLOCKS])
def test_an_interval_key_triggers_at_its_steps(tmp_path, monkeypatch, key, kind):
    for module in (checkpoint, supervised):
        monkeypatch.setattr(module, "IntervalTimer", Ticking)
    section, _, clock = key.partition(".")
    every, expected = CLOCKS[clock]
    alone = (*(f"{section}.{name}=null" for name in CLOCKS), f"{key}={every}", "recover.mode=auto")
    if kind in SUPERVISED:
        run = of_40_rows(tmp_path, kind, "total_train_steps=10", "total_train_epochs=9", *alone, valid="rows.jsonl")
    else:
        run = make_run(tmp_path, kind, "rollout.backend=embedded", *alone)
    assert SECTIONS[section](section, run, kind) == expected


# Recovery


@pytest.mark.shows("recover.mode")
@pytest.mark.parametrize("kind", RUNS)
def test_recover_mode_decides_on_recovery_and_on_resuming(tmp_path, kind):
    """For each mode: what follows from a killed trainer, and whether a start resumes or begins without a checkpoint."""
    expected = {
        "disabled": ("fail", False, False),
        "auto": ("recover", True, True),
        "fault": ("recover", False, False),
        "resume": ("recover", True, False),
    }
    made(tmp_path / "x" / "with", 5)
    made(tmp_path / "x" / "without")
    for mode, message in expected.items():
        words = (f"cluster.fileroot={tmp_path}", "experiment_name=x", f"recover.mode={mode}")
        recover = loaded(kind, *words).config.recover
        death = RestartPolicy(recover.mode, recover.retries).decide("trainer/0", -9, True, False).kind
        states = [plan_of(kind, *words, f"trial_name={name}").run_directory.state for name in ("with", "without")]
        assert (death, *(state == "continues" for state in states)) == message, mode


def test_recover_retries_limits_recoveries_in_a_row(tmp_path):
    for retries in (0, 2):
        recover = loaded("grpo", f"recover.retries={retries}", "recover.mode=auto").config.recover
        policy = RestartPolicy(recover.mode, recover.retries)
        kinds = [policy.decide("rollout/0", -9, True, False).kind for _ in range(retries + 1)]
        assert kinds == ["recover"] * retries + ["fail"]


# Where things are


@pytest.mark.shows("cluster.cluster_name")
def test_cluster_name_is_shown_in_the_plan():
    assert "on this machine (dgx-7)" in render(plan_of("grpo", "cluster.cluster_name=dgx-7"))
    assert plan_of("grpo", "cluster.cluster_name=dgx-7").cluster["name"] == "dgx-7"
    assert "(local)" not in render(plan_of("grpo"))


@pytest.mark.shows("cluster.name_resolve.nfs_record_root")
def test_nfs_record_root_holds_the_names(tmp_path):
    config = loaded("grpo", f"cluster.name_resolve.nfs_record_root={tmp_path / 'names'}", "trial_name=t").config
    with name_store_for(config, tmp_path, "launcher/0") as names:
        names.add("server/0", "here")
        (file,) = (tmp_path / "names").rglob("server/0@*")
        assert file.relative_to(tmp_path / "names").parts[1:3] == ("grpo-addition", "t")
