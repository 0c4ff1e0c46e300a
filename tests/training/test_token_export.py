"""Token exports: each JSON line contains what the step computed."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_like.process.errors import FinalFailure
from areal_like.process.run import Run
from areal_like.training import main as trainer
from areal_like.training.actor import Actor
from areal_like.training.main import load_trained_engine
from areal_like.training.reference import NoReference
from areal_like.training.sequences import Sequences
from areal_like.training.stop import StopRequest
from areal_like.training.token_export import TokenExport
from tests.support.planning import plan_of
from tests.support.training_controller import Groups, batch_frame, trajectory
from tests.support.training_runs import ME, make_run, model_folder, start_from, train_step, world
from tests.training.test_loop import SETTINGS, sampled

ALIGNED = (
    *("token_ids", "position_ids", "loss_mask", "advantages", "rewards", "inference_logprobs", "trainer_logprobs"),
    *("entropy", "mismatch_kl", "log_importance_ratio", "importance_ratio", "prob_delta"),
    *("is_masked", "is_masked_high", "is_masked_low"),
)
PROMPT = 3


def lines_of(run: Run, step: int) -> list[dict[str, Any]]:
    folder = run.directory / "token_exports" / f"step_{step:06d}"
    assert (folder / "STABLE").is_file()
    return [json.loads(line) for line in (folder / "rank_0.jsonl").read_text().splitlines()]


def exported(root: Path, groups: Groups, *words: str) -> tuple[Run, list[dict[str, Any]]]:
    """Of one step of an actor."""
    from areal_like.training.batch import read_batch

    run = make_run(root / "run", "grpo", *SETTINGS, f"actor.path={model_folder(root, 'qwen3')}", *words)
    actor = Actor(
        load_trained_engine(run, run.config.actor, "actor", world()),
        NoReference(),
        run.config.actor,
        run.config.seed,
        export=TokenExport(run, world()),
    )
    header, blobs = batch_frame(0, groups)
    train_step(actor, read_batch(header, [memoryview(blob) for blob in blobs]))
    return run, lines_of(run, 1)


def apart(*gaps: float) -> Groups:
    """A group of two answers to a prompt; for the sampler their tokens were so much likelier than e^-4."""
    ids = [5, 6, 7, *range(10, 10 + len(gaps))]
    logprobs = [0.0] * PROMPT + [-4.0 + gap for gap in gaps]
    return [[trajectory(ids, PROMPT, reward, 0, logprobs) for reward in (0.0, 1.0)]]


@pytest.mark.parametrize("words", [(), ("actor.ppo_n_minibatches=2",), ("actor.mb_spec.n_mbs=3",)])
def test_a_line_has_the_arrays_of_a_sequence_one_value_for_each_token(tmp_path, words):
    groups = sampled(None, 0, _model(tmp_path))
    run, lines = exported(tmp_path, groups, *words)
    trajectories = [each for group in groups for each in group]
    assert len(lines) == len(trajectories) == 16
    for number, (line, sampled_one) in enumerate(zip(lines, trajectories, strict=True)):
        length = len(sampled_one.token_ids)
        assert {name: len(line[name]) for name in ALIGNED} == dict.fromkeys(ALIGNED, length)
        assert line["token_ids"] == sampled_one.token_ids.tolist()
        assert line["position_ids"] == list(range(length))
        counted = [bool(each) for each in sampled_one.loss_mask]
        assert line["loss_mask"] == counted and counted[:PROMPT] == [False] * PROMPT
        assert (line["schema_version"], line["step"], line["rank"], line["run_id"]) == (1, 1, 0, run.run_id)
        assert (line["training_mode"], line["env_name"]) == ("rl", "addition")
        assert (line["group"], line["sample"], line["export_sequence_idx"]) == (number // 4, number, number)
        for name in ("advantages", "rewards", "inference_logprobs"):
            assert [value is not None for value in line[name]] == counted
        assert line["rewards"][-1] == pytest.approx(sampled_one.reward)
        if line["group"] == 3:  # all are as good, so that nothing is learnt from them, and nothing was computed
            assert set(line["trainer_logprobs"]) == set(line["is_masked"]) == {None}
            assert line["micro_step"] is None
            continue
        assert [value is not None for value in line["trainer_logprobs"]] == counted
        assert [value is not None for value in line["is_masked"]] == counted
        for place in np.flatnonzero(counted):
            trainers, samplers = line["trainer_logprobs"][place], line["inference_logprobs"][place]
            assert samplers == pytest.approx(sampled_one.logprobs[place], abs=1e-6)
            gap = line["log_importance_ratio"][place]
            assert gap == pytest.approx(trainers - samplers, abs=1e-5)
            assert line["importance_ratio"][place] == pytest.approx(math.exp(gap), rel=1e-4)
            assert line["mismatch_kl"][place] == pytest.approx(math.exp(gap) - gap - 1, rel=1e-4, abs=1e-4)
            assert line["prob_delta"][place] == pytest.approx(math.exp(trainers) - math.exp(samplers), abs=1e-5)
            assert 0 < line["entropy"][place] <= math.log(40) + 1e-4
    in_order = sorted((line["micro_step"], line["micro_sequence_idx"]) for line in lines if line["group"] < 3)
    assert len(set(in_order)) == 12
    assert (len({micro for micro, _ in in_order}) > 1) == bool(words)


def test_the_samples_of_several_agents_have_the_group_of_their_prompt(tmp_path):
    agents = [["solver", "checker"] * 2, ["solver"]]
    groups = [
        [
            replace(trajectory([5, 6, 7, 10], PROMPT, float(at)), agent=agent, conversation=at // 2)
            for at, agent in enumerate(of_group)
        ]
        for of_group in agents
    ]
    _, lines = exported(tmp_path, groups)
    found = [(line["group"], line["agent"], line["sample"]) for line in lines]
    assert found == [(0, agent, at) for at, agent in enumerate(agents[0])] + [(1, "solver", 4)]


def _model(root: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder(root, "qwen3"))


def test_logprobs_of_sampler_and_trainer_agree_at_each_token(tmp_path):
    """The sampler's log-probabilities are those of the very model that is trained."""
    _, lines = exported(tmp_path, sampled(None, 0, _model(tmp_path)))
    gaps = [gap for line in lines for gap in line["log_importance_ratio"] if gap is not None]
    assert len(gaps) > 20 and max(map(abs, gaps)) < 1e-4


def test_tokens_that_the_ratio_leaves_out_are_marked_with_the_side_on_which(tmp_path):
    limits = ("actor.ratio.mask_low=0.01", "actor.ratio.mask_high=100", "actor.use_decoupled_loss=false")
    _, lines = exported(tmp_path, apart(0.0, 30.0, -30.0), *limits)
    for line in lines:
        assert line["is_masked"] == [None, None, None, False, True, True]
        assert line["is_masked_low"] == [None, None, None, False, True, False]
        assert line["is_masked_high"] == [None, None, None, False, False, True]


def test_one_token_below_the_limit_masks_its_whole_sequence(tmp_path):
    limits = ("actor.ratio.sequence_mask_low=0.01", "actor.use_decoupled_loss=false")
    _, lines = exported(tmp_path, apart(0.0, 30.0), *limits)
    assert [line["is_masked"][PROMPT:] for line in lines] == [[True, True]] * 2
    assert [line["is_masked_low"][PROMPT:] for line in lines] == [[False, False]] * 2


def test_an_attempt_that_another_one_followed_leaves_the_exports_of_that_one(tmp_path):
    run = make_run(tmp_path / "run", "sft")
    rows = Sequences(np.arange(4, dtype=np.int32), np.ones(4), np.array([4]))
    stale = TokenExport(run, world())
    stale.write_rows(1, rows)
    TokenExport(start_from(run, None, 0, attempt=2), world()).write_rows(2, rows)
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    for step in (2, 3):
        with pytest.raises(FinalFailure, match="launcher has begun attempt 2 of this run; attempt 1 writes nothing"):
            stale.write_rows(step, rows)
    assert before == {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    assert not list(run.directory.glob("token_exports/*/.*"))


def test_values_that_are_not_finite_are_null(tmp_path):
    run = make_run(tmp_path / "run", "sft")
    rows = Sequences(np.arange(4, dtype=np.int32), np.ones(4), np.array([4]))
    export, micro = TokenExport(run, world()), rows.micro_batch([0], world().device)
    export.add(micro, {"trainer_logprobs": torch.tensor([-math.inf, math.nan, -0.5])})
    export.write_rows(1, rows)
    (line,) = lines_of(run, 1)
    assert line["trainer_logprobs"] == [None, None, None, -0.5]


@pytest.mark.parametrize(("kind", "written"), [("grpo", True), ("sft", True), ("grpo", False)])
def test_enable_token_export_writes_a_file_for_every_step(tmp_path, kind, written):
    words = ("train_dataset.fake.batch_size=4", "train_dataset.fake.seq_len=9", "total_train_steps=2")
    plain = ("recover.mode=disabled", f"enable_token_export={str(written).lower()}")
    run = make_run(tmp_path / "run", kind, *words, *plain)
    work = trainer._reinforcement if kind == "grpo" else trainer._supervised
    assert work(run, ME, world(), StopRequest(world())) == 0
    assert (run.directory / "token_exports").exists() == written
    for step in (1, 2) if written else ():
        lines = lines_of(run, step)
        assert [line["loss_mask"] for line in lines] == [[False] + [True] * 8] * 4
        assert all(len(line[name]) == 9 for line in lines for name in ALIGNED)
        for line in lines:
            assert line["training_mode"] == {"grpo": "rl", "sft": "sft"}[kind]
            assert all(value < 0 for value in line["trainer_logprobs"][1:])
            has_ratio = None not in line["importance_ratio"][1:]
            assert has_ratio == (kind == "grpo"), "without a sampler there is nothing to compare with"


def test_pairs_have_no_tokens_to_export():
    (obstacle,) = [each for each in plan_of("reward_model", "enable_token_export=true").cannot_start]
    assert obstacle.key == "enable_token_export" and "set it to false" in obstacle.message
