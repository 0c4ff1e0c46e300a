"""The answers of training steps as JSON lines, and the sample of a step that is shown."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.observe.shown_samples import SHOWN, ShownSamples, shown_text
from areal_like.process import atomic_file
from areal_like.process.errors import Failure, FinalFailure
from areal_like.process.run import ATTEMPT
from areal_like.rollout.batches import RolloutBatch
from areal_like.rollout.groups import Group
from areal_like.rollout.rollout_files import RolloutFiles, rollout_files
from areal_like.rollout.settings import RunLength
from areal_like.rollout.trajectory import Trajectory, pack_group
from tests.rollout.test_answer_files import grpo_run

LENGTH = RunLength(rows=20, steps_per_epoch=5, rows_per_epoch=20, total_steps=9)
MODEL = "builtin:tiny-addition"


def trajectory(prompt: list[int], answer: list[int], reward: float | None, **more: Any) -> Trajectory:
    generated = [0] * len(prompt) + [1] * len(answer)
    versions = [3 if each else -1 for each in generated]
    return Trajectory([*prompt, *answer], generated, [0.0] * len(versions), versions, reward, **more)  # type: ignore[arg-type]


def batch(step: int, *groups: list[Trajectory]) -> RolloutBatch:
    made = []
    for number, trajectories in enumerate(groups):
        facts, blob = pack_group(trajectories)
        made.append(Group(number, 10 + number, 0, len(trajectories), row_hash=255, facts=facts, blob=blob))
    return RolloutBatch(step, made, [0] * len(made), 1, LENGTH)


def write(
    directory: Path, batches: list[RolloutBatch], *overrides: str, start_step: int = 0
) -> list[asyncio.Task[None]]:
    """As the controller does; returns the tasks that it spawned."""

    async def writing() -> list[asyncio.Task[None]]:
        tasks: list[asyncio.Task[None]] = []
        files = RolloutFiles(
            grpo_run(directory, *overrides), start_step, lambda work: tasks.append(asyncio.create_task(work))
        )
        for each in batches:
            files.add(each)
        await files.written()
        assert all(task.done() for task in tasks)
        return tasks

    return asyncio.run(writing())


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(model_folder(MODEL))


@pytest.mark.shows("rollout.dump_to_file")
def test_a_line_has_the_texts_the_tokens_and_the_rewards_of_a_sample(tmp_path: Path, tokenizer: TextTokenizer):
    prompt, answer = tokenizer.encode("12+34=", special=False), tokenizer.encode("46", special=False)
    turns = [*answer, *prompt, *answer]
    second = trajectory(prompt, turns, 0.5, conversation=0)
    second.versions[len(prompt) + len(answer) : -len(answer)] = -1
    second.loss_mask[second.versions < 0] = 0
    scored = trajectory(prompt, answer, 1.0, rewards={"exact": 1.0})
    made = batch(6, [scored, trajectory(prompt, answer, None)], [second])
    write(tmp_path, [made])
    assert not (tmp_path / "rollouts").exists()
    write(tmp_path, [made], "rollout.dump_to_file=true")
    lines = [json.loads(line) for line in (tmp_path / "rollouts" / "step_000007.jsonl").read_text().splitlines()]
    first = lines[0]
    assert (first["prompt"], first["answer"], first["token_ids"]) == ("12+34=", "46", [*prompt, *answer])
    assert (first["reward"], first["rewards"], first["weights"]) == (1.0, {"exact": 1.0}, [3, 3])
    assert [(line["step"], line["group"], line["row"], line["sample"]) for line in lines] == [
        (7, 0, 10, 0),
        (7, 0, 10, 1),
        (7, 1, 11, 0),
    ]
    assert first["row_hash"] == f"{255:016x}" and lines[1]["reward"] is None
    spans = lines[2]["generated"]
    assert [lines[2]["token_ids"][start:end] for start, end in spans] == [answer, answer]


def test_the_answer_is_the_text_that_its_reward_read(tmp_path: Path, tokenizer: TextTokenizer):
    ids, stopped = tokenizer.encode("12+34=", special=False), tokenizer.encode("46+", special=False)
    samples = [trajectory(ids, stopped, 1.0, text="46"), trajectory(ids, stopped, 1.0, conversation=1)]
    write(tmp_path, [batch(0, samples)], "rollout.dump_to_file=true")
    lines = [json.loads(line) for line in (tmp_path / "rollouts" / "step_000001.jsonl").read_text().splitlines()]
    assert [line["answer"] for line in lines] == ["46", "46+"]
    assert [line["token_ids"] for line in lines] == [[*ids, *stopped]] * 2


def test_the_samples_of_several_agents_name_theirs_and_its_run(tmp_path: Path, tokenizer: TextTokenizer):
    ids = tokenizer.encode("12+34=", special=False)
    names = [("solver", 0), ("checker", 0), ("checker", 1)]
    samples = [trajectory(ids, ids, 1.0, conversation=0, agent=agent, run=run) for agent, run in names]
    write(tmp_path, [batch(0, samples)], "rollout.dump_to_file=true")
    lines = [json.loads(line) for line in (tmp_path / "rollouts" / "step_000001.jsonl").read_text().splitlines()]
    assert [(line["conversation"], line["agent"], line.get("run", 0)) for line in lines] == [
        (0, agent, run) for agent, run in names
    ]


@pytest.mark.parametrize(("keep", "left"), [("2", [8, 9]), ("null", [6, 7, 8, 9])])
def test_the_latest_steps_are_kept_and_those_after_the_start_are_made_again(tmp_path: Path, keep: str, left: list[int]):
    words = ("rollout.dump_to_file=true", f"rollout.dump_steps={keep}")
    batches = [batch(step, [trajectory([1], [2], 1.0)]) for step in range(5, 9)]
    write(tmp_path, batches, *words)
    assert list(rollout_files(tmp_path / "rollouts")) == left
    write(tmp_path, [], *words, start_step=8)
    assert list(rollout_files(tmp_path / "rollouts")) == left[:-1]


def test_a_file_that_cannot_be_written_ends_the_run(tmp_path: Path):
    (tmp_path / "rollouts").write_text("in the way")
    (task,) = write(tmp_path, [batch(0, [trajectory([1], [2], 1.0)])], "rollout.dump_to_file=true")
    assert isinstance(fault := task.exception(), Failure) and str(fault).startswith("cluster.fileroot: ")


@pytest.mark.shows("log.data")
def test_a_sample_of_each_step_is_written_to_be_shown(tmp_path: Path, tokenizer: TextTokenizer):
    ids = tokenizer.encode("1+2=", special=False)
    write(tmp_path, [batch(0, [trajectory(ids, tokenizer.encode("3", special=False), 1.0)])], "log.data=true")
    (line,) = (tmp_path / "rollouts" / SHOWN).read_text().splitlines()
    assert shown_text(json.loads(line)) == "a sample of step 1, reward 1\n  prompt: 1+2=\n  answer: 3"
    assert not rollout_files(tmp_path / "rollouts")


def test_an_attempt_that_another_one_followed_shows_no_sample(tmp_path: Path, tokenizer: TextTokenizer):
    run, start = grpo_run(tmp_path, "log.data=true"), tmp_path / ATTEMPT
    start.write_text('{"attempt": 1}')
    shown, ids = ShownSamples(run), tokenizer.encode("1+2=", special=False)
    shown.write(1, ids, ids)
    start.write_text('{"attempt": 2}')
    with pytest.raises(FinalFailure, match="another launcher has begun attempt 2"):
        shown.write(2, ids, ids)
    (line,) = (tmp_path / "rollouts" / SHOWN).read_text().splitlines()
    assert json.loads(line)["step"] == 1


@pytest.mark.parametrize("moment", ["while it is written", "before older ones are removed"])
def test_an_attempt_that_another_one_followed_changes_no_file_of_a_step(tmp_path: Path, monkeypatch, moment: str):
    start, plain = tmp_path / ATTEMPT, atomic_file.write_atomic
    start.write_text('{"attempt": 1}')
    words, batches = ("rollout.dump_to_file=true", "rollout.dump_steps=1"), [batch(0, [trajectory([1], [2], 1.0)])]
    write(tmp_path, batches, *words)

    def take_over(*_: object) -> None:
        start.write_text('{"attempt": 2}')

    def write_and_take_over(*given: Any) -> None:
        plain(*given)
        take_over()

    if moment == "while it is written":
        monkeypatch.setattr("os.fsync", take_over)
    else:
        monkeypatch.setattr(atomic_file, "write_atomic", write_and_take_over)
    (task,) = write(tmp_path, [batch(1, [trajectory([1], [2], 1.0)])], *words, start_step=1)
    assert isinstance(fault := task.exception(), FinalFailure) and "attempt 1 writes nothing" in str(fault)
    assert list(rollout_files(tmp_path / "rollouts")) == ([1] if moment == "while it is written" else [1, 2])


def test_an_attempt_that_is_followed_as_it_begins_removes_no_step(tmp_path: Path, monkeypatch):
    start = tmp_path / ATTEMPT
    start.write_text('{"attempt": 1}')
    words = ("rollout.dump_to_file=true", "rollout.dump_steps=null")
    write(tmp_path, [batch(step, [trajectory([1], [2], 1.0)]) for step in range(3)], *words)

    def found_and_taken_over(folder: Path) -> dict[int, Path]:
        start.write_text('{"attempt": 2}')
        return rollout_files(folder)

    monkeypatch.setattr("areal_like.rollout.rollout_files.rollout_files", found_and_taken_over)
    with pytest.raises(FinalFailure, match="another launcher has begun attempt 2"):
        write(tmp_path, [], *words, start_step=1)
    assert list(rollout_files(tmp_path / "rollouts")) == [1, 2, 3]


def test_a_conversation_is_saved_and_shown_with_its_messages(tmp_path: Path, tokenizer: TextTokenizer):
    ids, answer = tokenizer.encode("1+2=", special=False), tokenizer.encode("3", special=False)
    called: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
    }
    talk: list[dict[str, Any]] = [{"role": "user", "content": "1+2="}, called, {"role": "tool", "content": "3"}]
    last = {"role": "assistant", "content": "it is\n3"}
    turns = [trajectory(ids, answer, 0.5, conversation=4), trajectory(ids, answer, 1.0, conversation=4)]
    turns[1].messages = [*talk, last]
    other = trajectory(ids, answer, 1.0, conversation=5, messages=[{"role": "user", "content": {1, 2}}])
    write(tmp_path, [batch(0, [*turns, other])], "log.data=true", "rollout.dump_to_file=true")
    lines = [json.loads(line) for line in (tmp_path / "rollouts" / "step_000001.jsonl").read_text().splitlines()]
    assert [line.get("messages") for line in lines] == [None, [*talk, last], [{"role": "user", "content": "{1, 2}"}]]
    (shown,) = (tmp_path / "rollouts" / SHOWN).read_text().splitlines()
    assert shown_text(json.loads(shown)).splitlines() == [
        *("a sample of step 1, reward 0.5", "  user: 1+2="),
        '  assistant: [{"function":{"name":"add","arguments":{"a":1}}}]',
        *("  tool: 3", "  assistant: it is", "    3"),
    ]
