"""Packing and unpacking of groups; trajectories that cannot be trained on are refused."""

import numpy as np
import pytest
from safetensors.numpy import load, save

from areal_like.rollout.trajectory import Trajectory, pack_group, prompt_hash, unpack_group


def trajectory(**changes) -> Trajectory:
    defaults = {
        "token_ids": [5, 6, 7, 8, 1],
        "loss_mask": [0, 0, 1, 1, 1],
        "logprobs": [0, 0, -0.5, -0.25, -1.5],
        "versions": [-1, -1, 3, 4, 4],
        "reward": 0.5,
        "rewards": {"exact": 0.5, "score": 1.0},
    }
    return Trajectory(**{**defaults, **changes})


def test_a_group_is_decoded_to_its_content():
    group = [trajectory(), trajectory(token_ids=[9], loss_mask=[1], logprobs=[-1], versions=[2], finish="length")]
    facts, blob = pack_group(group)
    for before, after in zip(group, unpack_group(facts, memoryview(blob)), strict=True):
        for name in ("token_ids", "loss_mask", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
            assert getattr(after, name).dtype == getattr(before, name).dtype
        assert (before.reward, before.rewards, before.finish) == (after.reward, after.rewards, after.finish)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_arrays_of_a_group_are_what_safetensors_writes(size: int):
    _, blob = pack_group([trajectory() for _ in range(size)])
    assert blob == save(load(blob))


def test_arrays_that_a_workflow_has_replaced_by_others_keep_their_values():
    changed = trajectory()
    changed.loss_mask = changed.loss_mask.astype(np.int64)
    changed.logprobs = changed.logprobs.astype(np.float64)
    changed.versions = changed.versions.astype(np.int64)
    assert pack_group([changed]) == pack_group([trajectory()])


def test_the_summary_of_a_group_has_the_fields_of_the_controller():
    (fact,), _ = pack_group([trajectory(metrics={"turns": 2})])
    assert (fact["length"], fact["generated"], fact["version_min"], fact["version_max"]) == (5, 3, 3, 4)
    (masked,), _ = pack_group([trajectory(loss_mask=[0, 0, 1, 0, 0])])
    assert (fact["loss_tokens"], masked["loss_tokens"], masked["generated"]) == (3, 1, 3)
    assert (fact["reward"], fact["rewards"]["score"], fact["metrics"]) == (0.5, 1.0, {"turns": 2.0})
    assert fact["prompt_hash"] == prompt_hash([5, 6]) != prompt_hash([5, 7])


def test_an_answer_without_a_reward_is_out_of_the_loss():
    facts, blob = pack_group([trajectory(), trajectory(reward=None, rewards={})])
    assert [(fact["reward"], fact["loss_tokens"]) for fact in facts] == [(0.5, 3), (None, 0)]
    judged, unjudged = unpack_group(facts, blob)
    assert judged.loss_mask.any() and not unjudged.loss_mask.any() and unjudged.reward is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": float("nan")}, "'reward' is nan"),
        ({"rewards": {"exact": float("inf")}}, "'exact' is inf"),
        ({"versions": [-1] * 5}, "no generated token"),
        ({"loss_mask": [1] * 5}, "not generated"),
        ({"logprobs": [0, 0, float("nan"), 0, 0]}, "not all finite"),
        ({"logprobs": [0, 0, -0.5, -9999.0, -0.5]}, "holds -9999 for a generated token: a stand-in"),
        ({"logprobs": [0, 0, -0.5, -3.4e38, -0.5]}, "a stand-in for one that is missing"),
        ({"logprobs": [0.0]}, "of one length"),
        ({"finish": "over"}, "'over'"),
    ],
)
def test_untrainable_trajectories_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pack_group([trajectory(), trajectory(**changes)])


def test_an_empty_group_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        pack_group([])


def test_a_token_without_an_alternative_has_the_log_probability_0_and_the_least_that_is_sampled_is_trained_on():
    facts, _ = pack_group([trajectory(logprobs=[0, 0, 0, 0, -104.0])])
    assert facts[0]["loss_tokens"] == 3
