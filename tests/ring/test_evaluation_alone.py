"""A model is evaluated alone: killed and continued, on other engines, and on servers that run already."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from areal_like.rollout.evaluation.answer_folders import read_answers
from tests.ring.start import Ended, Running, directory_of, run, wait_until_gone
from tests.ring.test_servers_alone import KEY, NAMED, VARIABLE, serving
from tests.support.engine_environments import require_engine

pytestmark = pytest.mark.xdist_group("servers_alone")

ROWS, QUICK = 24, 12
MODEL = "builtin:tiny-addition"
FILE = """
defaults: [grpo, _self_]
valid_dataset: null
evaluator:
  benchmarks:
  - {name: sums, path: rows.jsonl, reward: {name: "gated.py:gated", timeout_s: 240}}
"""
GATED = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent

async def gated(prompt, completion, answer):
    while int(prompt[:2]) >= %d and not (HERE / "go").exists():
        await asyncio.sleep(0.05)
    return float(completion == answer)
"""


def write(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{number:02}+{number:02}=", "answer": f"{2 * number:03}"} for number in range(ROWS)]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "gated.py").write_text(GATED % QUICK)
    (root / "e.yaml").write_text(FILE)


def answers(ended: Ended) -> list[dict[str, Any]]:
    return read_answers(ended.directory / "evaluations/step_000000/sums.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """An evaluation that nothing disturbs."""
    root = tmp_path_factory.mktemp("whole")
    write(root)
    (root / "go").touch()
    ended = run(root, "eval", MODEL, config="e.yaml")
    assert ended.code == 0, ended.text
    return ended


@pytest.mark.slow
def test_a_killed_evaluation_of_a_model_goes_on_with_the_same_answers(whole: Ended, tmp_path: Path) -> None:
    write(tmp_path)
    first = Running(tmp_path, ("eval", MODEL), "t", "e.yaml")
    partial = directory_of(tmp_path, "t") / "evaluations/step_000000/sums.partial.jsonl"
    for _ in range(2400):
        partial = directory_of(tmp_path, "t") / "evaluations/step_000000/sums.partial.jsonl"
        if len(killed := read_answers(partial)) >= QUICK:
            break
        assert first.process.poll() is None, first.text()
        threading.Event().wait(0.1)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(60)
    assert wait_until_gone(first.directory) == {}
    assert len(killed) == QUICK and not (tmp_path / "go").exists()
    (tmp_path / "go").touch()
    ended = run(tmp_path, "eval", MODEL, config="e.yaml")
    assert ended.code == 0, ended.text
    lines = answers(ended)
    assert [each for each in lines if each["row"] in {line["row"] for line in killed}] == sorted(
        killed, key=lambda line: line["row"]
    )
    assert lines == answers(whole)
    assert "done: evaluation in " in ended.out and ended.out.splitlines()[-1].split()[:3] == ["sums", "24", "0"]
    other = run(tmp_path, "eval", "builtin:tiny-countdown", config="e.yaml")
    assert other.code == 2 and "actor.path" in other.err and MODEL in other.err


@pytest.mark.slow
def test_two_models_are_evaluated_in_turn_and_compared(whole: Ended, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "go").touch()
    other = "builtin:tiny-programs"
    ended = run(tmp_path, "eval", MODEL, f"with={other}", config="e.yaml")
    assert ended.code == 0, ended.text
    first, second = (directory_of(tmp_path, f"t-{side}") for side in ("first", "second"))
    assert read_answers(first / "evaluations/step_000000/sums.jsonl") == answers(whole)
    answered = read_answers(second / "evaluations/step_000000/sums.jsonl")
    assert len(answered) == ROWS
    table = ended.out[ended.out.index("first   ") :]
    (line,) = [each.split() for each in table.splitlines() if each.startswith("sums ")]
    scores = [sum(each["score"] for each in lines) / ROWS for lines in (answers(whole), answered)]
    assert line[:4] == ["sums", str(ROWS), *(f"{score:.3f}" for score in scores)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("vllm", "sglang")]
)
def test_other_engines_are_verified_and_give_the_same_answers(engine: str, whole: Ended, tmp_path: Path) -> None:
    """They load the model themselves; every tensor that they serve is compared with the files."""
    write(tmp_path)
    (tmp_path / "go").touch()
    words = (f"rollout={engine}", f"{engine}.python={require_engine(engine)}", "rollout.setup_timeout=900")
    ended = run(tmp_path, "eval", MODEL, *words, config="e.yaml", limit_s=1100)
    assert ended.code == 0, ended.text
    kept = ("row", "answer", "score")
    assert [{name: each[name] for name in kept} for each in answers(ended)] == [
        {name: each[name] for name in kept} for each in answers(whole)
    ]


@pytest.mark.slow
def test_servers_that_run_already_give_the_same_answers_with_their_key(whole: Ended, tmp_path: Path) -> None:
    with serving(tmp_path / "served", NAMED, "rollout.open_generation=never", **{VARIABLE: KEY}) as servers:
        (address,) = servers.addresses()
        write(tmp_path / "run")
        (tmp_path / "run" / "go").touch()
        words = (NAMED, f"rollout.server_addresses=[{address}]")
        ended = run(tmp_path / "run", "eval", MODEL, *words, config="e.yaml", OWN_SERVERS_KEY=KEY)
        assert ended.code == 0, ended.text
        assert answers(ended) == answers(whole)
