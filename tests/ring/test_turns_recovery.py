"""Killed processes: of conversations of several sequences, and sessions of a program, nothing is trained on twice."""

import json
from collections import Counter
from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from areal_like.rollout.rollout_files import rollout_files
from tests.ring.start import SHORT, running, wait_until_gone
from tests.support.agent_programs import PROGRAM

pytestmark = [pytest.mark.xdist_group("ring-2"), pytest.mark.slow]

STEPS = 24
WORDS = (*SHORT, "evaluator.freq_steps=null", "rollout.dump_to_file=true", f"total_train_steps={STEPS}")
TRIES = ("workflow.name=multi_turn", "+workflow.args.feedback=' no, {prompt}'", "+workflow.args.max_turns=3")
BRANCHING = (*TRIES, "rollout.trajectory_strategy=branching")
KILLED = (
    PROGRAM
    + """
import signal
from pathlib import Path

first = complete(row["prompt"])["text"]
try:  # the first session of every eighth row is killed in its middle
    Path("killed", row["prompt"]).touch(exist_ok=False)
    if row["prompt"][4] == "7":
        os.kill(os.getpid(), signal.SIGKILL)
except FileExistsError:
    pass
complete(f"{row['prompt']}{first} no, {row['prompt']}")
"""
)
AGENT = ("workflow.name=agent", "agent.command=[python, program.py]", "train_dataset.batch_size=2", "n_samples=2")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", [BRANCHING, TRIES, AGENT], ids=["branching", "interleaved", "agent"])
def test_no_sequence_of_a_killed_attempt_is_trained_on_again(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "program.py").write_text(KILLED)
    with running(tmp_path, *WORDS, *words) as ring:
        for step, attempt, name in ((2, 1, "episodes"), (5, 1, "trainer"), (8, 2, "rollout")):
            ring.wait_for_step(step, attempt)
            ring.kill(name)
        ended = ring.wait(600)
    assert ended.code == 0, ended.text
    assert ended.summary["attempts"] == 3, ended.text
    assert audit(ended.ledger(), 2) == []
    trained = {event["step"] + 1: event["groups"] for event in ended.ledger() if event["event"] == "trained"}
    files = rollout_files(ended.directory / "rollouts")
    assert sorted(files) == sorted(trained) == list(range(1, STEPS + 1))
    once: Counter[int] = Counter()
    size = 2 if words is AGENT else 4
    for step, file in files.items():
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        assert list(dict.fromkeys(each["group"] for each in samples)) == trained[step]
        once.update(trained[step])
        for group in trained[step]:
            conversations = Counter(each["conversation"] for each in samples if each["group"] == group)
            assert size - 1 <= len(conversations) <= size
        if words is BRANCHING:
            assert all(len(each["generated"]) == 1 for each in samples)
    assert set(once.values()) == {1}
    assert wait_until_gone(ended.directory) == {}
