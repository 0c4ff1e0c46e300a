"""Keys of a worker of episodes: set in the configuration of a run, and seen in the worker's process."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_like.data.checked_rows import row_hash
from areal_like.data.row_table import hash_text
from areal_like.data.tokenizer import TextTokenizer
from areal_like.discovery import announce, open_name_store
from areal_like.models.characters import write_tokenizer
from areal_like.process.identity import Identity
from areal_like.process.run import open_run
from areal_like.rollout.settings import rollout_settings
from tests.rollout.episodes.test_main import environment
from tests.support.episode_parts import MINE
from tests.support.ring_parts import Controller, Server, lease, open_controller, open_server, write_run
from tests.support.rollout_world import grpo

LIMIT_S = 40


def worked(
    root: Path, *overrides: str, experiment: str = "grpo", hangs: bool = False, **leased: Any
) -> tuple[Controller, Server, str]:
    """Controller and server after one group was generated, or failed, in a worker's process; and its log."""
    directory = write_run(root, *overrides, experiment=experiment)
    command = [sys.executable, "-m", "areal_like.rollout.episodes", "--run-dir", str(directory), "--index", "0"]

    async def main() -> tuple[Controller, Server, str]:
        async with open_server() as server, open_controller([lease(0, server.address, **leased)]) as controller:
            server.gate = asyncio.Event() if hangs else None
            process = subprocess.Popen(command, env=environment(directory), stderr=subprocess.PIPE, text=True)
            try:
                with open_name_store(open_run(directory), Identity("rollout", 0)) as names:
                    announce(names, Identity("rollout", 0), controller.address)
                    _, errors = await asyncio.to_thread(process.communicate, timeout=LIMIT_S)
            finally:
                process.kill()
            assert process.returncode == 0, errors
            return controller, server, errors

    return asyncio.run(main())


@pytest.mark.shows("rollout.request_timeout")
def test_request_timeout_fails_a_group_that_its_server_does_not_answer(tmp_path):
    controller, _, _ = worked(tmp_path, "rollout.request_timeout=0.5", "rollout.request_retries=0", hangs=True)
    assert "no answer within 0.5 s (rollout.request_timeout)" in controller.results["0.1"]["error"]


@pytest.mark.shows("rollout.check_trajectory_format")
def test_check_trajectory_format_fails_a_group_with_a_wrong_trajectory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    words = ("workflow.name=mine.py:Wrong", "+workflow.args.what=token_ids", "+workflow.args.value=64")
    result = worked(tmp_path, *words, "rollout.check_trajectory_format=true")[0].results["0.1"]
    assert result["status"] == "failed" and "the tokenizer knows ids from 0 to 63" in result["error"]


@pytest.mark.shows("rollout.enable_rollout_tracing")
def test_enable_rollout_tracing_logs_the_requests_of_a_group(tmp_path):
    _, _, log = worked(tmp_path, "rollout.enable_rollout_tracing=true")
    assert "lease 0.1 " in log


@pytest.mark.shows("tokenizer_path")
@pytest.mark.parametrize("experiment", ["grpo", "ppo"])
def test_tokenizer_path_turns_the_rows_of_a_run_into_tokens(tmp_path, experiment):
    """By a tokenizer with two of its tokens exchanged."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_tokenizer(folder, 64)
    usual = TextTokenizer(folder)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"+"', '"plus"').replace('"="', '"+"').replace('"plus"', '"="'))
    _, server, log = worked(tmp_path, f"tokenizer_path={folder}", experiment=experiment)
    prompt = server.requests[0][0]["prompt"]
    assert re.fullmatch(r"\d+=\d+\+", usual.decode(prompt))
    assert "lease 0.1 " not in log  # rollout.enable_rollout_tracing is false


EFFORT = "{% if reasoning_effort == 'low' %}1{% elif reasoning_effort == 'high' %}2{% else %}0{% endif %}+"


@pytest.mark.shows("evaluator.gconfig.reasoning_effort")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "0+3="),
        (("evaluator.gconfig.reasoning_effort=low",), "1+3="),
        (("evaluator.gconfig.reasoning_effort=high",), "2+3="),
    ],
)
def test_the_chat_template_reads_the_reasoning_effort_of_an_evaluation(tmp_path, words, expected):
    folder, row = tmp_path / "tokenizer", {"prompt": [{"role": "user", "content": "3="}], "answer": "3"}
    folder.mkdir()
    write_tokenizer(folder, 64)
    (folder / "chat_template.jinja").write_text(EFFORT + "{{ messages[0].content }}")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    data = [f"{section}.path={tmp_path}/rows.jsonl" for section in ("train_dataset", "valid_dataset")]
    words = (*words, *data, "train_dataset.batch_size=1", "~task", "reward.name=exact", f"tokenizer_path={folder}")
    (evaluated,) = rollout_settings(grpo(*words)).evaluated
    leased: Any = {"split": "valid", "row_hash": hash_text(row_hash(row)), "n": 1, "sampling": dict(evaluated.sampling)}
    controller, server, log = worked(tmp_path, *words, purpose="eval", **leased)
    assert controller.results["0.1"]["status"] == "done", log
    assert TextTokenizer(folder).decode(server.requests[0][0]["prompt"]) == expected
    assert "reasoning_effort" not in server.requests[0][0]["sampling"], "no engine knows it"
