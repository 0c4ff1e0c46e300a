"""Benchmarks beside training: rows, rewards and sampling of their own, and the answers in files."""

import shlex
import subprocess
from pathlib import Path

import pytest

from areal_like.data.tasks.addition import Addition
from areal_like.observe.evaluation_statistics import best_of
from areal_like.rollout.evaluation.answer_folders import read_answers
from tests.ring.start import SHORT, Ended, command, environment, run
from tests.ring.test_servers_alone import ask, serving
from tests.support.engine_environments import require_engine

pytestmark = pytest.mark.xdist_group("ring-2")

FILE = """
defaults: [grpo]
saver:
  best: {metric: eval/sampled/score}
evaluator:
  freq_steps: 2
  benchmarks:
  - {name: sampled, path: addition, num_examples: 6, n_samples: 3, gconfig: {temperature: 0.8, max_new_tokens: 5}}
  - {name: own, path: rows.jsonl, fields: {prompt: q}, reward: {name: "lengths.py:Length", args: {most: 4}}}
"""
REWARD = """
class Length:
    def __init__(self, most: int):
        self.most = most

    def __call__(self, prompt, completion, broken=False):
        if broken:
            raise RuntimeError("no judge")
        return float(len(completion) <= self.most)
"""
ROWS = '{"q": "1+2="}\n{"q": "11+2="}\n{"q": "3+2=", "broken": true}\n'


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    root = tmp_path_factory.mktemp("benchmarks")
    for name, text in (("b.yaml", FILE), ("lengths.py", REWARD), ("rows.jsonl", ROWS)):
        (root / name).write_text(text)
    words = (*SHORT, "total_train_steps=2", "evaluator.max_failed_share=0.5", "rollout.request_retries=0")
    ended = run(root, *words, config="b.yaml")
    assert ended.code == 0, ended.text
    return ended


def test_each_evaluation_is_one_line_with_the_metrics_of_its_rows(ended: Ended) -> None:
    lines = [line for line in ended.lines("metrics.jsonl") if line.get("eval/benchmark")]
    assert sorted((line["eval/due_step"], line["eval/benchmark"]) for line in lines) == [
        *((0, "own"), (0, "sampled"), (2, "own"), (2, "sampled"))
    ]
    for line in lines:
        names = {name.split("/")[1] for name in line if name.startswith("eval/")}
        assert names - {"due_step", "benchmark", "error"} == {line["eval/benchmark"]}
        assert line["step"] == line["eval/due_step"], "the first and the last are of one version"


def test_the_answers_in_the_file_give_the_scores(ended: Ended) -> None:
    lines = [line for line in ended.lines("metrics.jsonl") if line.get("eval/benchmark") == "sampled"]
    truth = {row["prompt"]: row["answer"] for row in Addition().rows("test")}
    for line in lines:
        answers = read_answers(ended.directory / f"evaluations/step_{line['step']:06d}/sampled.jsonl")
        assert [each["sample"] for each in answers] == [0, 1, 2] * 6
        assert all(each["score"] == (each["answer"] == truth[each["prompt"]]) for each in answers)
        by_row = [[each["score"] for each in answers[at : at + 3]] for at in range(0, 18, 3)]
        assert line["eval/sampled/pass@2"] == pytest.approx(sum(best_of(row, 2) for row in by_row) / 6)
        assert max(each["tokens"] for each in answers) <= 5
    assert len({each["answer"] for each in answers}) > 1


def test_a_benchmark_has_its_own_reward_and_a_failure_is_no_wrong_answer(ended: Ended) -> None:
    line = next(line for line in ended.lines("metrics.jsonl") if line.get("eval/benchmark") == "own")
    assert (line["eval/own/rows"], line["eval/own/failed"], line["eval/own/samples"]) == (3, 1, 2)
    answers = read_answers(ended.directory / "evaluations/step_000000/own.jsonl")
    assert [each.get("score") for each in answers] == [float(len(each["answer"]) <= 4) for each in answers[:2]] + [None]
    assert "no judge" in answers[2]["error"] and "no judge" in line["eval/error"]


def test_the_end_and_the_summary_show_every_benchmark(ended: Ended) -> None:
    assert ended.out.count("benchmark sampled ") == 3 and "pass@3" in ended.out
    assert set(ended.summary["benchmarks"]) == {"sampled", "own"}
    assert Path(ended.directory / "evaluations/step_000002/valid.jsonl").is_file()


def test_the_best_checkpoint_is_linked_with_a_card_that_says_how_to_serve_it(ended: Ended) -> None:
    best = ended.directory / "checkpoints/best"
    line = next(each for each in ended.lines("metrics.jsonl")[::-1] if each.get("eval/benchmark") == "sampled")
    assert best.resolve().name == "step_000002" and (best / "model.safetensors").is_file()
    card = (best / "README.md").read_text()
    assert f"eval/sampled/score: {line['eval/sampled/score']:.6g}" in card and card.endswith("serve\n")
    assert "best: eval/sampled/score" in ended.out


def greedy_answers_of_the_card(ended: Ended, root: Path, **more: str) -> None:
    """Starts the servers by the last line of the card, and compares their answers with those of the evaluation."""
    best = ended.directory / "checkpoints/best"
    python, *words = shlex.split((best / "README.md").read_text().splitlines()[-1])
    assert python == "python"
    found = [f"{name}={value}" for name, value in more.items()]
    with serving(root, *words[2:-1], *found, "rollout.setup_timeout=600", config=None) as servers:
        (address,) = servers.addresses(limit_s=600)
        lines = read_answers(ended.directory / f"evaluations/{best.resolve().name}/valid.jsonl")
        for line in lines[:8]:
            body = {"prompt": line["prompt"], "max_tokens": 6, "temperature": 0}
            status, reply = ask(address, "/v1/completions", body)
            assert status == 200 and reply["choices"][0]["text"] == line["answer"], (line, reply)


def test_the_line_of_the_card_serves_the_answers_of_the_evaluation_that_chose_it(ended: Ended, tmp_path: Path) -> None:
    greedy_answers_of_the_card(ended, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("vllm")
def test_the_line_of_the_card_serves_the_same_answers_by_vllm(tmp_path: Path) -> None:
    python = require_engine("vllm")
    words = (*SHORT, "rollout=vllm", f"vllm.python={python}", "rollout.setup_timeout=600", "total_train_steps=2")
    best = ("evaluator.freq_steps=1", "saver.best.metric=eval/score")
    trained = run(tmp_path / "run", *words, *best, limit_s=900)
    assert trained.code == 0, trained.text
    greedy_answers_of_the_card(trained, tmp_path / "serve", **{"vllm.python": str(python)})


def test_eval_shows_the_scores_of_a_run_and_compares_two(ended: Ended) -> None:
    root, name = ended.directory.parents[2], str(ended.directory)
    table = run(root, "eval", name, "step=0", config=None)
    assert table.code == 0, table.text
    (line,) = [each.split() for each in table.out.splitlines() if each.startswith("sampled")]
    score = next(each for each in ended.lines("metrics.jsonl") if each.get("eval/benchmark") == "sampled")
    assert line[:4] == ["sampled", "6", "0", f"{score['eval/sampled/score']:.3f}"]
    assert "own      2     1" in table.out
    both = run(root, "eval", name, f"with={name}", config=None)
    assert both.out.count("no real difference") == 3, both.text
    missing = run(root, "eval", name, "step=1", config=None)
    assert missing.code == 2 and "there are: 0, 2" in missing.err


@pytest.mark.slow
def test_a_model_is_evaluated_alone_without_a_step(ended: Ended) -> None:
    root = ended.directory.parents[2]
    model = ended.directory / "checkpoints/step_000002"
    alone = run(root, "eval", "evaluator.num_examples=32", f"actor.path={model}", trial="alone", config="b.yaml")
    assert alone.code == 0 and "done: evaluation in " in alone.out, alone.text
    assert "trainer" not in " ".join(path.name for path in (alone.directory / "logs").iterdir())
    (table,) = [line.split() for line in alone.out.splitlines() if line.startswith("sampled ")]
    assert table[1:3] == ["6", "0"]
    last = ended.directory / "evaluations/step_000002/valid.jsonl"
    trained, evaluated = (
        read_answers(each) for each in (last, alone.directory / "evaluations/step_000000/valid.jsonl")
    )
    assert [each["answer"] for each in trained] == [each["answer"] for each in evaluated]


def test_other_rewards_are_tried_on_the_saved_answers(ended: Ended) -> None:
    root = ended.directory.parents[2]
    words = command("rewards", str(ended.directory), "--reward", "lengths.py:Length,most=4", "step=2", config=None)
    done = subprocess.run(words, cwd=root, env=environment(root), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for file in (ended.directory / "evaluations/step_000002").iterdir() for line in read_answers(file)]
    answers = sum("answer" in line for line in lines)
    assert f"lengths.py:Length: {answers} answers" in done.stdout
    assert "lengths.py:Length and that of the run: " in done.stdout
