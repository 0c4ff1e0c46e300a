"""The quickstart: one command, and the held-out score rises."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.data.tasks.addition import Addition
from areal_like.observe.metrics import find_metric
from areal_like.rollout.audit import audit
from tests.ring.start import LIMIT_S, Ended, environment, processes_of, run, shared_memory, warnings_in
from tests.support.tracker_packages import tensorboard_events, wandb_history

pytestmark = pytest.mark.xdist_group("ring-1")

STEPS = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def quick(root: Path) -> Ended:
    ended = run(
        root,
        f"total_train_steps={STEPS}",
        "evaluator.freq_steps=20",
        "evaluator.num_examples=400",
        "stats_logger.wandb.mode=offline",
        WANDB_API_KEY="a-key-that-must-not-be-seen",
    )
    assert ended.code == 0, ended.text
    assert warnings_in(ended.out) == []
    assert not shared_memory(ended.directory)
    assert processes_of(ended.directory) == {}
    return ended


def test_the_held_out_score_rises(quick):
    curve = dict(quick.summary["curve"])
    assert 0.35 <= curve[0] <= 0.55, curve
    assert curve[STEPS] >= curve[0] + 0.15, curve
    assert quick.summary["score"] == curve[STEPS] and quick.summary["objective"] == curve[STEPS]


def test_the_first_and_the_last_evaluation_are_complete_and_of_one_version(quick):
    lines = {line["eval/due_step"]: line for line in quick.lines("metrics.jsonl") if "eval/score" in line}
    assert len(lines) == 4 and {line["eval/samples"] for line in lines.values()} == {400}
    for step in (0, STEPS):
        assert lines[step]["step"] == lines[step]["eval/version_min"] == lines[step]["eval/version_max"] == step
    assert quick.out.count(" at the start\n") == quick.out.count(f" at step {STEPS}\n") == 1


def test_every_step_has_a_line_with_documented_names(quick):
    lines = [line for line in quick.lines("metrics.jsonl") if "train/loss" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert {"reward/mean", "rollout/samples", "offpolicy/logprob_diff_max", "perf/step_s", "train/lr"} <= set(line)
        undocumented = [name for name in line if "/" in name and not find_metric(name)]
        assert undocumented == []


def test_trainer_and_sampler_agree_on_logprobs(quick):
    """A step that trains on its own version's samples sees the sampler's log-probabilities again."""
    fresh = [
        line["offpolicy/logprob_diff_max"]
        for line in quick.lines("metrics.jsonl")
        if line.get("offpolicy/staleness_max") == 0
    ]
    assert fresh and max(fresh) < 1e-4, fresh


def test_the_ledger_has_no_stale_double_or_lost_sample(quick, root):
    events = quick.ledger()
    assert audit(events, 2) == []
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "audit", str(quick.directory)],
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "(limit: 2 weight versions)" in done.stdout, done.stdout + done.stderr
    trained = [event for event in events if event["event"] == "trained"]
    assert [event["step"] for event in trained] == list(range(STEPS))


def test_asynchronous_training_really_used_older_samples(quick):
    assert 0 < max(quick.metric("offpolicy/staleness_max")) <= 2


def test_no_held_out_pair_was_in_a_training_prompt(quick):
    from tokenizers import Tokenizer

    from areal_like.models import model_folder
    from areal_like.rollout.trajectory import prompt_hash

    tokenizer = Tokenizer.from_file(str(model_folder("builtin:tiny-addition") / "tokenizer.json"))

    def hashes(split: str) -> set[str]:
        return {prompt_hash(tokenizer.encode(row["prompt"]).ids) for row in Addition().rows(split)}

    train, held_out = hashes("train"), hashes("test")
    seen = {event["prompt_hash"] for event in quick.ledger() if event["event"] == "finished"}
    assert not train & held_out and len(train) + len(held_out) == 10_000
    assert len(seen) > 1000 and seen <= train and not seen & held_out


def test_the_model_is_a_hugging_face_directory_that_answers_additions(quick):
    """In a process that knows nothing of this package."""
    script = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
pairs = [(a, b) for a in range(3, 100, 4) for b in (7, 31, 58, 92)]
prompts = tokenizer([f"{a:02}+{b:02}=" for a, b in pairs], return_tensors="pt")
out = model.generate(**prompts, max_new_tokens=4, do_sample=False)
texts = tokenizer.batch_decode(out[:, prompts["input_ids"].shape[1]:], skip_special_tokens=True)
print(sum(text.replace(" ", "") == f"{a + b:03}" for text, (a, b) in zip(texts, pairs)))
"""
    env = environment(quick.directory) | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(quick.model())],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert int(done.stdout) >= 50, f"{done.stdout} of 100 sums are right"


def test_chat_answers_from_a_pipe(quick, root):
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "chat", str(quick.directory)],
        input="12+34=\n",
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d{3}\n", done.stdout), done.stdout


def test_the_summary_names_the_model_and_the_command_to_resume(quick, root):
    assert str(quick.model().relative_to(root)) in quick.out
    assert "python -m launcher chat" in quick.out
    assert (quick.directory / "curve.svg").read_text().startswith("<svg")
    assert quick.summary["outcome"] == "done" and quick.summary["steps"] == STEPS


def test_the_run_directory_records_the_run_without_secrets(quick):
    names = {path.name for path in quick.directory.iterdir()}
    assert {"config.yaml", "provenance.yaml", "command.txt", "environment.txt", "logs", "metrics.jsonl"} <= names
    for path in quick.directory.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert b"a-key-that-must-not-be-seen" not in path.read_bytes(), path
    variables = (quick.directory / "config.yaml").read_text()
    assert "AREAL_LIKE_TOKEN" not in variables


def test_tensorboard_gets_the_same_numbers(quick):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(quick.directory / "tensorboard"))
    events.Reload()
    seen = {point.step: point.value for point in events.Scalars("reward/mean")}
    means = {line["step"]: line["reward/mean"] for line in quick.lines("metrics.jsonl") if "reward/mean" in line}
    assert seen.keys() == means.keys()
    assert all(abs(seen[step] - means[step]) < 1e-6 for step in means)


def test_trackers_are_shown_samples_and_distributions(quick):
    """Also what was sent last, although the run ends without waiting for other threads than theirs."""
    events = tensorboard_events(quick.directory / "tensorboard")
    assert [table.step for table in events.Tensors("samples/train")] == [1, *range(10, STEPS + 1, 10)]
    assert [table.step for table in events.Tensors("samples/eval")] == list(range(0, STEPS + 1, 20))
    (file,) = quick.directory.glob("wandb/offline-run-*/*.wandb")
    sent = wandb_history(file)
    assert {row["step"] for row in sent if "reward/mean" in row} == set(range(1, STEPS + 1))
    shown = [row for row in sent if "samples/eval.path" in row]
    assert [row["step"] for row in shown] == list(range(0, STEPS + 1, 20))
    table = json.loads((file.parent / "files" / shown[-1]["samples/eval.path"]).read_text())
    answer = dict(zip(table["columns"], table["data"][0], strict=True))
    left, right = map(int, answer["prompt"].rstrip("=").split("+"))
    assert (answer["score"] == 1.0) == (answer["answer"] == f"{left + right:03d}<eos>")
    assert any(sum(row.get("distributions/train/advantage.values", ())) for row in sent)


def test_a_checkpoint_is_complete_and_lists_its_parts(quick):
    folder = quick.directory / "checkpoints" / f"step_{STEPS:06d}"
    assert (folder / ".complete").exists()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(manifest["parts"])
    assert (folder / "resume" / "controller.frame").exists()
