"""`eval` of a model behind an OpenAI-compatible API: killed, continued, refused if it would be another evaluation."""

import functools
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from areal_like.models import model_folder
from areal_like.rollout.evaluation.answer_folders import read_answers
from tests.ring.start import Ended, Running, directory_of, run, wait_until_gone
from tests.ring.test_servers_alone import serving
from tests.support.chat_service import KEY, ChatService, Reply, added, chat_service, completion
from tests.support.engine_environments import require_engine
from tests.support.environments_hub import environments_hub, require_client
from tests.support.tiny_models import tiny_qwen3

HUB_KEY = "pit_0123456789abcdef"
ROWS, AT_ONCE, BEFORE_KILL = 24, 4, 10
FILE = """
defaults: [grpo]
actor: {{path: some-model}}
valid_dataset: null
gconfig: {{temperature: 0.5}}
rollout:
  server_type: openai
  server_addresses: ["{address}"]
  max_concurrent_rollouts: {at_once}
  request_retries: 1
evaluator:
  max_failed_share: 0.5
  benchmarks:
  - {{name: sums, path: rows.jsonl, fields: {{prompt: q}}, reward: {{name: exact}}}}
"""


class Evaluated(NamedTuple):
    service: ChatService
    killed: list[dict[str, Any]]
    """The answers when it was killed."""
    asked_before: int
    ended: Ended


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluated]:
    root, go = tmp_path_factory.mktemp("api"), threading.Event()
    rows = [{"q": f"{number}+{number}=", "answer": str(2 * number)} for number in range(ROWS)]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    broken = {"21+21=": Reply(500, b"oops"), "22+22=": completion("wrong"), "23+23=": completion("")}

    def answer(body: dict[str, Any]) -> Reply:
        with service.changed:
            number = len(service.asked)
        if number > BEFORE_KILL:
            go.wait(240)
        return broken.get(body["messages"][-1]["content"]) or added(body)

    with chat_service(answer) as (service, address):
        (root / "e.yaml").write_text(FILE.format(address=address, at_once=AT_ONCE))
        os.environ["OPENAI_API_KEY"] = KEY
        try:
            first = Running(root, ("eval",), "t", "e.yaml")
            service.wait_for(BEFORE_KILL + AT_ONCE)
            partial = directory_of(root, "t") / "evaluations/step_000000/sums.partial.jsonl"
            for _ in range(600):
                if len(killed := read_answers(partial)) >= BEFORE_KILL - 1:
                    break
                threading.Event().wait(0.1)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(60)
            assert wait_until_gone(first.directory) == {}
            killed, asked = read_answers(partial), len(service.asked)
            go.set()
            yield Evaluated(service, killed, asked, run(root, "eval", config="e.yaml", OPENAI_API_KEY=KEY))
        finally:
            del os.environ["OPENAI_API_KEY"]


def test_a_killed_evaluation_goes_on_and_asks_nothing_twice_but_what_was_in_flight(evaluated: Evaluated) -> None:
    ended, service = evaluated.ended, evaluated.service
    assert ended.code == 0, ended.text
    answered = {line["prompt"] for line in evaluated.killed if "error" not in line}
    again = service.prompts[evaluated.asked_before :]
    assert len(answered) >= BEFORE_KILL - 2 and not answered & set(again)
    assert service.most_running <= AT_ONCE
    lines = read_answers(ended.directory / "evaluations/step_000000/sums.jsonl")
    assert [line["row"] for line in lines] == list(range(ROWS))
    assert [line for line in lines if line["row"] in {each["row"] for each in evaluated.killed if "score" in each}] == [
        each for each in sorted(evaluated.killed, key=lambda each: each["row"]) if "score" in each
    ]


def test_errors_of_the_api_stand_apart_from_wrong_answers(evaluated: Evaluated) -> None:
    lines = read_answers(evaluated.ended.directory / "evaluations/step_000000/sums.jsonl")
    assert "status 500: oops" in lines[21]["error"] and "score" not in lines[21]
    assert [line["score"] for line in lines[22:]] == [0.0, 0.0] and lines[23]["answer"] == ""
    line = next(each for each in evaluated.ended.lines("metrics.jsonl") if each.get("eval/benchmark") == "sums")
    assert (line["eval/sums/rows"], line["eval/sums/failed"]) == (ROWS, 1)
    assert line["eval/sums/score"] == pytest.approx(21 / 23)
    table = next(line.split() for line in evaluated.ended.out.splitlines() if line.startswith("sums "))
    assert table[:4] == ["sums", "23", "1", "0.913"]


def test_a_row_that_fails_is_one_also_in_synchronous_mode(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"q": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(3)))
    with chat_service(lambda body: Reply(400, b"no") if "1+1=" in str(body) else added(body)) as (_, address):
        (tmp_path / "e.yaml").write_text(FILE.format(address=address, at_once=AT_ONCE))
        words = ("eval", "max_head_offpolicyness=0")
        ended = run(tmp_path, *words, config="e.yaml", OPENAI_API_KEY=KEY)
    assert ended.code == 0 and ended.summary["attempts"] == 1, ended.text
    lines = read_answers(ended.directory / "evaluations/step_000000/sums.jsonl")
    assert [line.get("score") for line in lines] == [1.0, None, 1.0]


def test_an_evaluation_alone_is_pushed_to_the_environments_hub_when_it_is_done(tmp_path: Path) -> None:
    require_client()
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"q": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(3)))
    with chat_service(added) as (_, address), environments_hub(HUB_KEY, "sums") as hub:
        (tmp_path / "e.yaml").write_text(FILE.format(address=address, at_once=AT_ONCE))
        words = ("eval", "evaluator.save.env_hub=true")
        own = functools.partial(run, OPENAI_API_KEY=KEY, PRIME_API_KEY=HUB_KEY, PRIME_API_BASE_URL=hub.address)
        ended = own(tmp_path, *words, config="e.yaml")
        assert ended.code == 0 and "1 evaluation pushed to the Environments Hub" in ended.text, ended.text
        (pushed,) = hub.evaluations.values()
    assert pushed["finalized"] and pushed["metrics"]["score"] == 1.0
    assert [each["completion"][-1]["content"] for each in pushed["samples"]] == ["0", "2", "4"]
    files = [path for path in ended.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if HUB_KEY.encode() in path.read_bytes()] and HUB_KEY not in ended.text


def test_the_key_is_in_no_file_and_no_output(evaluated: Evaluated) -> None:
    files = [path for path in evaluated.ended.directory.rglob("*") if path.is_file()]
    assert len(files) > 5 and not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in evaluated.ended.out + evaluated.ended.err


def test_another_model_sampling_data_or_reward_is_refused_with_both_values(evaluated: Evaluated) -> None:
    root = evaluated.ended.directory.parents[2]
    words = (
        *("actor.path=other-model", "gconfig.temperature=0.9", "seed=5"),
        "evaluator.benchmarks=[{name: sums, path: other.jsonl, fields: {prompt: q}, reward: {name: numeric}}]",
    )
    (root / "other.jsonl").write_text((root / "rows.jsonl").read_text())
    refused = run(root, "eval", *words, config="e.yaml", OPENAI_API_KEY=KEY)
    assert refused.code == 2, refused.text
    for key, now, was in (
        ("actor.path", "other-model", "some-model"),
        ("gconfig.temperature", "0.9", "0.5"),
        ("evaluator.benchmarks[sums].path", "other.jsonl", "rows.jsonl"),
        ("evaluator.benchmarks[sums].reward.name", "numeric", "exact"),
    ):
        [line] = [line for line in refused.err.splitlines() if line.startswith((f"{key} ", f"{key}:"))]
        assert now in line and was in line


def test_changed_rows_are_refused_with_both_hashes(evaluated: Evaluated) -> None:
    root = evaluated.ended.directory.parents[2]
    text = (root / "rows.jsonl").read_text()
    (root / "rows.jsonl").write_text(text.replace('"3+3="', '"3+4="'))
    try:
        refused = run(root, "eval", f"resume={evaluated.ended.directory}", config=None, OPENAI_API_KEY=KEY)
    finally:
        (root / "rows.jsonl").write_text(text)
    assert refused.code == 1, refused.text
    assert "evaluator.benchmarks.0: the saved answers are of other rows: when row 3 was answered" in refused.err


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("vllm", "sglang")]
)
def test_servers_of_ours_are_such_an_api(engine: str, tmp_path: Path) -> None:
    """A random model with the tokenizer and the template of a real one: engines render chats while they start."""
    real, model, rows = Path(model_folder("builtin:smollm2-135m")), tmp_path / "model", 4
    config = json.loads((real / "config.json").read_text())
    changes = {name: config[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    changes |= {"pad_token_id": config["eos_token_id"], "max_position_embeddings": 512, "head_dim": 32}
    tiny_qwen3(**changes).save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(real / name, model / name)
    (tmp_path / "rows.jsonl").write_text('{"q": "1+1=", "answer": "2"}\n' * rows)
    words = (f"rollout={engine}", f"{engine}.python={require_engine(engine)}", "rollout.setup_timeout=900")
    with serving(tmp_path / "served", *words, f"actor.path={model}", "trial_name=t") as servers:
        (address,) = servers.addresses(limit_s=900)
        (tmp_path / "e.yaml").write_text(FILE.format(address=f"http://{address}/v1", at_once=AT_ONCE))
        sampling = ("gconfig.max_new_tokens=6", f"actor.path={model}")
        ended = run(tmp_path, "eval", *sampling, config="e.yaml", OPENAI_API_KEY=KEY)
    assert ended.code == 0, ended.text
    lines = read_answers(ended.directory / "evaluations/step_000000/sums.jsonl")
    assert len(lines) == rows and not [line for line in lines if "error" in line]
    assert all(line["answer"] for line in lines)
