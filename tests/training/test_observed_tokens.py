"""Tokens in the loss that no model sampled (rollout.mask_env_responses=false)."""

import numpy as np

from areal_like.observe.timing import Stopwatch
from areal_like.training.actor import Actor
from areal_like.training.batch import PROXIMAL, SAMPLER, VERSIONS
from areal_like.training.main import load_trained_engine
from areal_like.training.reference import NoReference
from areal_like.training.step_metrics import StepMetrics
from tests.support.training_runs import make_run, world
from tests.training.test_actor_keys import batch_of


def test_their_importance_ratio_begins_at_one(tmp_path):
    run = make_run(tmp_path, "grpo", "actor.ppo_n_minibatches=1")
    engine = load_trained_engine(run, run.config.actor, "actor", world())
    actor = Actor(engine, NoReference(), run.config.actor, seed=1)
    batch = batch_of([1.0, 0.0], [3, 3])
    fields = batch.sequences.fields
    fields[SAMPLER][:] = -0.25
    fields[VERSIONS][2] = -1
    before = fields[SAMPLER].copy()
    actor.compute_logprobs(batch, Stopwatch())
    assert PROXIMAL not in fields and (fields[SAMPLER] == before).all()
    batch.trains_observed = True
    actor.compute_logprobs(batch, Stopwatch())
    assert fields[SAMPLER][2] == fields[PROXIMAL][2] < 0
    others = np.arange(len(before)) != 2
    assert (fields[SAMPLER][others] == before[others]).all()
    metrics = StepMetrics(world(), batch, {}).metrics(np.ones(2, bool))
    assert (metrics["offpolicy/staleness_mean"], metrics["offpolicy/staleness_share/0"]) == (0, 1)
