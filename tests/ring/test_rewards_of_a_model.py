"""`rewards` with a reward model: its server runs for as long as the answers are scored, and nothing of it stays."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from areal_like.models import model_folder
from tests.ring.start import LIMIT_S, command, environment, let_ctrl_c_end_it, processes_of, run
from tests.ring.test_model_as_reward import scores

pytestmark = pytest.mark.xdist_group("servers_alone")

PROMPT = "12+34="
ANSWERS = ["046", "64", "", "444444", "9"]
SUM = "[{name: numeric, weight: 2}, {name: model, args: {path: model}, weight: 0.5, label: judged}]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the built-in model and a score head, and answers."""
    shutil.copytree(model_folder("builtin:tiny-addition"), tmp_path / "model")
    torch.manual_seed(5)
    model: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.5)
    model.save_pretrained(tmp_path / "model")
    lines = [{"prompt": PROMPT, "answer": "046", "completion": answer} for answer in ANSWERS]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def rewards(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command("rewards", *words, "cluster.fileroot=runs", config=None),
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def values(report: str, title: str) -> list[float]:
    """The distribution of at most six values, each as often as it occurs."""
    lines = report.partition(f"{title}: ")[2].partition("  time: ")[0].splitlines()
    pairs = [line.split() for line in lines if "█" in line]
    return [float(value) for value, _, count in pairs for _ in range(int(count))]


def left_over(root: Path) -> list[Path]:
    of_runs = [path for path in (root / "runs").rglob("*") if path.is_file()]
    return [*of_runs, *(root / "state").rglob("*.json")]


def test_answers_of_a_file_get_the_scores_of_the_model_alone_and_in_a_sum(root: Path):
    done = rewards(root, "answers.jsonl", "--reward", "model,path=model", "--reward", "numeric", f"reward.parts={SUM}")
    assert done.returncode == 0, done.stderr
    expected = scores(root / "model", [(PROMPT, answer) for answer in ANSWERS])
    numeric = [1.0, 0.0, 0.0, 0.0, 0.0]
    assert values(done.stdout, "model") == pytest.approx(sorted(expected), abs=1e-4)
    total = [2 * right + 0.5 * score for right, score in zip(numeric, expected, strict=True)]
    assert values(done.stdout, "the sum of numeric, judged") == pytest.approx(sorted(total), abs=1e-4)
    mean = sum(expected) / len(expected)
    assert f"  parts: judged {mean:.4g}, numeric 0.2" in done.stdout
    assert "model and numeric: 0 of 5 answers have equal rewards, correlation -0.9" in done.stdout
    assert "model: starting the server of the reward model model\n  reward/0 ready " in done.stderr
    assert not left_over(root)


@pytest.mark.slow
def test_a_run_that_was_trained_with_a_model_gives_its_answers_the_same_scores(root: Path):
    few = ("total_train_steps=1", "train_dataset.batch_size=2", "n_samples=2", "valid_dataset=null")
    ended = run(root, *few, "reward.name=model", "+reward.args.path=model", "rollout.dump_to_file=true")
    assert ended.code == 0, ended.text
    (root / "elsewhere").mkdir()
    lines = [json.loads(line) for line in next(ended.directory.glob("rollouts/step_*.jsonl")).read_text().splitlines()]
    recorded = sorted(line["reward"] for line in lines)
    for words in ((), ("--reward", "model")):
        done = rewards(root / "elsewhere", str(ended.directory), *words)
        assert done.returncode == 0, done.stderr
        assert values(done.stdout, "model") == pytest.approx(recorded, abs=1e-4) and len(recorded) == 4
        assert "model and that of the run: " in done.stdout and "have equal rewards, correlation 1\n" in done.stdout
    assert not left_over(root / "elsewhere")


@pytest.mark.slow
def test_a_server_that_cannot_load_its_model_ends_the_command_with_its_reason(root: Path):
    (root / "model" / "model.safetensors").write_bytes(b"no weights")
    (root / "own.py").write_text("def own(prompt, completion, api_key):\n    return 0.0\n")
    key = "planted-key-9f8e7d"
    own = f"{{name: 'own.py:own', args: {{api_key: {key}}}}}"
    done = rewards(root, "answers.jsonl", f"reward.parts=[{own}, {{name: model, args: {{path: model}}}}]")
    assert done.returncode == 1 and "SafetensorError" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "the logs are in " in done.stderr and not done.stdout
    assert not processes_of(root / "runs" / "rewards" / "r0001")
    kept = [path for path in root.rglob("*") if path.is_file() and "runs" in path.parts]
    assert kept and not [path for path in kept if key.encode() in path.read_bytes()]


def test_ctrl_c_ends_the_server_and_nothing_stays(root: Path):
    waits = "import time\n\ndef slow(prompt, completion):\n    open('waits', 'w').close()\n    time.sleep(600)\n"
    (root / "slow.py").write_text(waits)
    words = command("rewards", "answers.jsonl", "reward.timeout_s=900", "cluster.fileroot=runs", config=None)
    words.append("reward.parts=[{name: 'slow.py:slow'}, {name: model, args: {path: model}}]")
    process = subprocess.Popen(words, cwd=root, env=environment(root), preexec_fn=let_ctrl_c_end_it)
    try:
        until = time.monotonic() + LIMIT_S
        while not (root / "waits").exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        [directory] = [path.parent for path in root.rglob("config.yaml")]
        assert {"reward/0", "episodes/0"} <= set(processes_of(directory).values())
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    finally:
        process.kill()
        process.wait()
    assert not processes_of(directory) and not left_over(root)
