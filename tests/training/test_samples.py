"""Samples and distributions of training steps and evaluations for trackers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_like.observe.reading import read_lines
from areal_like.observe.tracker_samples import Extras
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.rollout.decisions import Accept
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.evaluation.tracker_samples import EvaluationSamples
from areal_like.rollout.groups import Group, Result
from areal_like.rollout.trajectory import Trajectory, pack_group
from tests.support.rollout_world import evaluated, grpo

TRACKER = ("stats_logger.tensorboard.path=events",)
ME = Identity("trainer", 0, 2)


def make_run(folder: Path, *overrides: str) -> Run:
    return Run(folder, grpo("tokenizer_path=builtin:tiny-addition", *overrides), "grpo", "run1", folder, folder)


def answer(text: str, prompt: str, reward: float | None, run: Run, version: int = 3) -> Trajectory:
    from areal_like.data.tokenizer import TextTokenizer
    from areal_like.models import model_folder

    tokenizer = TextTokenizer(model_folder(run.config.tokenizer_path))
    first, rest = tokenizer.encode(prompt), tokenizer.encode(text)
    mask = np.array([0] * len(first) + [1] * len(rest))
    versions = np.where(mask, version, -1)
    logprobs = np.where(mask, -0.5, 0.0)
    return Trajectory(np.array(first + rest), mask, logprobs, versions, reward, {"score": float(reward == 1)})


def batch_of(run: Run, rewards: Sequence[Sequence[float | None]], step: int) -> Any:
    from areal_like.training.batch import ADVANTAGES, read_batch

    groups = [[answer(str(10 + i), f"{i}+5=", reward, run) for i, reward in enumerate(group)] for group in rewards]
    packed = [pack_group(group) for group in groups]
    samples = [{"group": number, "rank": 0, **fact} for number, (facts, _) in enumerate(packed) for fact in facts]
    header = {"step": step, "samples": samples, "shard": list(range(len(samples)))}
    batch = read_batch(header, [memoryview(blob) for _, blob in packed])
    advantages = np.repeat(batch.rewards_A, batch.sequences.lengths_N)
    batch.sequences.fields[ADVANTAGES] = np.where(batch.sequences.target_mask, advantages, 0).astype(np.float32)
    return batch


def written(run: Run, name: str) -> list[Extras]:
    return [Extras.of(line) for line in read_lines(run.directory / "samples" / f"{name}.jsonl")]


def test_a_training_step_shows_whole_groups_as_text_with_results(tmp_path: Path) -> None:
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER, "stats_logger.tensorboard.log_extras.interval=5")
    samples = SampleLog(run, ME, world())
    rewards = [[0.5, 0.5], [1.0, 0.5], [0.0, 0.25], [0.5, 0.75], [0.5, 0.25]]
    for step in range(10):
        samples.write(batch_of(run, rewards, step))
    assert [(each.step, each.purpose) for each in written(run, "trainer-0")] == [
        (1, "train"),
        (5, "train"),
        (10, "train"),
    ]
    first = written(run, "trainer-0")[0]
    groups = {(each["chosen for"], each["group"]) for each in first.samples}
    assert {("lowest reward", 2), ("highest reward", 1)} < groups and len(groups) == 3 and len(first.samples) == 6
    (best,) = (each for each in first.samples if each["reward"] == 1.0)
    assert (best["prompt"], best["answer"], best["advantage"]) == ("0+5=", "10", 1.0)
    assert (best["prompt tokens"], best["answer tokens"], best["weights"], best["truncated"]) == (4, 2, 3, False)
    assert first.distributions["reward"] == first.distributions["advantage"] == [r for group in rewards for r in group]
    assert first.distributions["group_reward"] == [0.5, 0.75, 0.125, 0.625, 0.375]
    assert first.distributions["answer_tokens"] == [2.0] * 10


def test_a_fully_masked_sample_has_no_advantage(tmp_path: Path) -> None:
    from areal_like.training.batch_advantages import mask_truncated
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER)
    batch = batch_of(run, [[1.0, 0.5]], 0)
    batch.truncated_A[0] = True
    mask_truncated(batch)
    SampleLog(run, ME, world()).write(batch)
    (extras,) = written(run, "trainer-0")
    assert [each["advantage"] for each in extras.samples] == [None, 0.5]
    assert extras.distributions["advantage"] == [0.5]


def test_an_answer_without_a_reward_is_shown_without_one(tmp_path: Path) -> None:
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER)
    batch = batch_of(run, [[None, 0.5, 1.0], [0.0, 0.5]], 0)
    SampleLog(run, ME, world()).write(batch)
    (extras,) = written(run, "trainer-0")
    assert [each["reward"] for each in extras.samples if each["chosen for"] == "highest reward"] == [None, 0.5, 1.0]
    assert (extras.distributions["reward"], extras.distributions["group_reward"]) == (
        [0.5, 1.0, 0.0, 0.5],
        [0.75, 0.25],
    )


@pytest.mark.parametrize("setting", ["stats_logger.tensorboard.path=null", "train_dataset.fake={batch_size: 4}"])
def test_without_a_tracker_or_with_fake_data_no_samples_are_written(tmp_path: Path, setting: str) -> None:
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER, setting)
    SampleLog(run, ME, world()).write(batch_of(run, [[1.0, 0.5]], 0))
    assert not (tmp_path / "samples").exists()


def test_an_evaluation_shows_the_same_few_rows_and_the_spread_of_all_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path, *TRACKER)
    groups = [Group(number=n, row=100 + n, seed=0, n=1, evaluation=20) for n in range(12)]
    evaluation = Evaluation(evaluated(), 20, groups)
    for number in (11, 3, *range(3), *range(4, 11)):
        group = groups[number]
        facts, blob = pack_group([answer("15", "7+8=", float(number % 2), run, version=20 + number % 2)])
        evaluation.apply(Accept(group, Result(group.name, "done", facts=facts, blob=blob)))
    EvaluationSamples(run, Identity("rollout", 0)).write(evaluation)
    (extras,) = written(run, "rollout-0")
    assert (extras.step, extras.purpose) == (20, "eval")
    assert [each["row"] for each in extras.samples] == list(range(100, 108))
    assert extras.samples[1] == {
        "step": 20,
        "row": 101,
        "sample": 0,
        "prompt": "7+8=",
        "answer": "15",
        "score": 1.0,
        "reward": 1.0,
        "prompt tokens": 4,
        "answer tokens": 2,
        "truncated": False,
        "weights": 21,
    }
    assert sorted(extras.distributions["score"]) == [0.0] * 6 + [1.0] * 6


def test_without_a_tokenizer_token_ids_are_shown_and_long_texts_cut(tmp_path: Path) -> None:
    from areal_like.data.sampled_text import MAX_TEXT, SampledText

    assert SampledText("", tmp_path)([5, 6]) == "5 6"
    assert SampledText("./nothing", tmp_path)([5, 6]) == "5 6"
    text = SampledText("", tmp_path)([10] * MAX_TEXT)
    assert text.endswith(f" ... ({2 * MAX_TEXT - 1} more characters)") and len(text) < MAX_TEXT + 100


def in_conversations(run: Run) -> Any:
    """A group of an episode of three samples, one of which is cut off, and one of a single sample; and a group of two
    episodes."""
    batch = batch_of(run, [[1.0, 1.0, 1.0, 0.0], [0.5, 0.5, 0.25]], 0)
    batch.conversations_A = np.array([0, 0, 0, 1, 2, 2, 3])
    batch.truncated_A[1] = True
    return batch


def test_the_samples_of_an_episode_are_shown_and_counted_once(tmp_path: Path) -> None:
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER)
    SampleLog(run, ME, world()).write(in_conversations(run))
    (extras,) = written(run, "trainer-0")
    shown = [(each["group"], each["sample"], each["reward"], each["answer tokens"]) for each in extras.samples]
    assert shown == [(1, 4, 0.5, 4), (1, 6, 0.25, 2), (0, 0, 1.0, 6), (0, 3, 0.0, 2)]
    assert [each["truncated"] for each in extras.samples] == [False, False, True, False]
    assert [each["answer"] for each in extras.samples] == ["10\n11", "12", "10\n11\n12", "13"]
    assert extras.distributions == {
        "reward": [1.0, 0.0, 0.5, 0.25],
        "advantage": [1.0, 0.0, 0.5, 0.25],
        "group_reward": [0.5, 0.375],
        "answer_tokens": [6, 2, 4, 2],
    }


def of_agents(run: Run, *samples: tuple[int, int, str, int, float | None]) -> Any:
    """Given as group, conversation, agent, run, and reward."""
    from areal_like.training.batch import AgentSamples

    batch = batch_of(run, [[reward for *_, reward in samples]], 0)
    keys = [(group, agent) for group, _, agent, *_ in samples]
    whole = [(group, conversation) for group, conversation, *_ in samples]
    answers = [(group, conversation, agent) for group, conversation, agent, *_ in samples]
    batch.groups_A, episodes, batch.conversations_A = (
        np.array([list(dict.fromkeys(each)).index(key) for key in each]) for each in (keys, whole, answers)
    )
    names, runs = tuple(agent for _, _, agent, *_ in samples), np.array([number for _, _, _, number, _ in samples])
    batch.agents = AgentSamples(np.array([group for group, *_ in samples]), episodes, names, runs)
    return batch


def test_each_agent_of_an_episode_is_an_answer_with_the_mean_reward_of_its_runs(tmp_path: Path) -> None:
    """Of a run the first sample that has a reward counts. Groups are those of prompts."""
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER)
    samples = [
        *((0, 0, "a", 0, 3.0), (0, 0, "b", 0, None), (0, 0, "b", 0, 1.0), (0, 0, "b", 0, 9.0), (0, 0, "b", 1, 0.0)),
        *((0, 0, "b", 2, None), (1, 0, "a", 0, 2.0)),
    ]
    SampleLog(run, ME, world()).write(of_agents(run, *samples))
    (extras,) = written(run, "trainer-0")
    assert extras.distributions["reward"] == [3.0, 0.5, 2.0] == extras.distributions["group_reward"]
    shown = {(each["chosen for"], each["group"], each["agent"], each["reward"]) for each in extras.samples}
    assert shown == {("lowest reward", 0, "b", 0.5), ("highest reward", 0, "a", 3.0), ("random", 1, "a", 2.0)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("reward", [1.0, None], ids=["another_has", "none_has"])
def test_a_group_without_rewards_is_shown_only_if_there_is_no_other(tmp_path: Path, reward: float | None) -> None:
    from areal_like.training.samples import SampleLog
    from tests.support.training_runs import world

    run = make_run(tmp_path, *TRACKER)
    samples = [(0, 0, "a", 0, reward), (0, 0, "b", 0, None), (0, 1, "a", 0, reward), (0, 1, "b", 0, None)]
    SampleLog(run, ME, world()).write(of_agents(run, *samples))
    (extras,) = written(run, "trainer-0")
    assert {each["agent"] for each in extras.samples} == ({"a", "b"} if reward is None else {"a"})
    assert extras.distributions["group_reward"] == ([] if reward is None else [reward])


def test_an_evaluation_shows_an_episode_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, *TRACKER)
    group = Group(number=0, row=7, seed=0, n=2, evaluation=20)
    samples = [answer("15", "7+8=", 1.0, run, version=20), answer("16", "7+9=", 1.0, run, version=21)]
    samples = [replace(samples[0], finish="length"), samples[1], answer("3", "7+8=", 0.0, run, version=20)]
    packed = pack_group([replace(each, conversation=n) for each, n in zip(samples, (5, 5, 6), strict=True)])
    evaluation = Evaluation(evaluated(), 20, [group])
    evaluation.apply(Accept(group, Result(group.name, "done", facts=packed[0], blob=packed[1])))
    EvaluationSamples(run, Identity("rollout", 0)).write(evaluation)
    (extras,) = written(run, "rollout-0")
    shown = [(each["sample"], each["answer"], each["answer tokens"], each["weights"]) for each in extras.samples]
    assert shown == [(0, "15\n16", 4, 21), (1, "3", 1, 20)]
    assert [each["truncated"] for each in extras.samples] == [True, False]
    assert extras.distributions == {"score": [1.0, 0.0], "answer_tokens": [4, 1]}
