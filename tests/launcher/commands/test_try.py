"""`try` with answers from a file: rows, exact tokens, masks, rewards and the verdict, without a model."""

import json
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.data.votes import VoteRule
from areal_like.models import model_folder
from areal_like.rollout.episodes.try_report import group_report
from areal_like.rollout.episodes.try_rows import TriedGroup
from areal_like.rollout.trajectory import Trajectory
from tests.support.commands import Run, command_runner

PROMPT = "00+04="
AGENT = """
import json, os, sys, urllib.request
row = json.loads(sys.stdin.readline())
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
for _ in range(int(sys.argv[1])):
    body = json.dumps({"model": "any", "prompt": row["prompt"], "max_tokens": 8}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url + "/completions", body, headers)).read()
"""


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return command_runner(tmp_path, capfd, monkeypatch)


def write(*answers: dict[str, Any]) -> str:
    Path("answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return "answers.jsonl"


def test_tokens_masks_rewards_and_the_verdict_are_shown(run: Run):
    file = write({"row": 3, "completion": "004"}, {"prompt": PROMPT, "completion": "046"})
    done = run("try", "--config", "grpo.yaml", "--answers", file)
    assert done.code == 0, done.err
    assert "row 3 of the train split of task addition" in done.out
    assert f"prompt, 6 tokens: '{PROMPT}'\n    2 2 12 2 6 13\n" in done.out
    assert "ends by stop: '004<eos>'\n    2 2 6 1\n    trained on, 4 tokens: the whole answer" in done.out
    assert "answer 1: reward 1 (" in done.out
    assert "spread of rewards: from 0.1 to 1, deviation 0.45" in done.out
    assert "good signal: 1 of 1 groups have different rewards, pass@1 0.5, pass@2 1, 0 of 2 answers are cut" in done.out


def test_what_is_too_hard_and_cut_off_names_the_keys_to_change(run: Run):
    file = write({"row": 3, "completion": "9999"}, {"row": 3, "completion": "9999"})
    done = run("try", "--config", "grpo.yaml", "--answers", file, "gconfig.max_new_tokens=3")
    assert done.code == 0, done.err
    assert "cut off: '999'" in done.out
    assert "spread of rewards: none, all are " in done.out
    signal, *keys = done.out.splitlines()[-4:]
    assert signal.startswith("no signal: 0 of 1 groups")
    assert [line.split(":")[0].strip() for line in keys] == [
        "train_dataset.path",
        "gconfig.n_samples",
        "gconfig.max_new_tokens",
    ]


def test_a_cut_off_answer_that_is_masked_is_not_shown_as_trained_on(run: Run):
    file = write({"row": 3, "completion": "004"}, {"row": 3, "completion": "9999"})
    words = ("gconfig.max_new_tokens=4", "actor.mask_truncated_completions=true")
    done = run("try", "--config", "grpo.yaml", "--answers", file, *words)
    assert done.code == 0, done.err
    whole, masked = (line.strip() for line in done.out.splitlines() if "trained on" in line)
    assert whole == "trained on, 4 tokens: the whole answer"
    assert masked == "trained on, 0 tokens: nothing, as it is cut off (actor.mask_truncated_completions)"


def test_a_reward_that_fails_is_shown_with_its_row(run: Run):
    Path("mine.py").write_text("def broken(prompt, completion):\n    return completion.nothing\n")
    file = write({"row": 3, "completion": "004"})
    words = ("reward.name=mine.py:broken", "rollout.request_retries=0")
    done = run("try", "--config", "grpo.yaml", "--answers", file, *words)
    assert done.code == 0
    assert "answer 1: reward none, it failed, ends by stop: '004<eos>'" in done.out
    assert "trained on, 0 tokens: nothing" in done.out
    assert "reward: a reward that does not fail (1 of 1)" in done.out


def test_turns_of_a_conversation_come_from_a_list(run: Run):
    right, wrong = {"row": 3, "completion": ["046", "004"]}, {"row": 3, "completion": ["046", "999", "040"]}
    several = ("workflow.name=multi_turn", "+workflow.args.feedback='{prompt}'", "+workflow.args.max_turns=3")
    words = ("try", "--config", "grpo.yaml", *several, "gconfig.max_tokens=200")
    done = run(*words, "--answers", write(right, wrong))
    assert done.code == 0, done.err
    assert f"ends by stop: '046<eos>{PROMPT}004<eos>'" in done.out and "answer 1: reward 0.9 (" in done.out
    assert "trained on, 8 tokens: '046<eos>004<eos>'" in done.out
    assert "answer 2: " in done.out and "999<eos>" in done.out
    short = run(*words, "--answers", write({"row": 3, "completion": ["046", "999"]}))
    assert "row 3: the workflow asks for answer 3 of conversation 1, and the file has 2" in short.out
    one = run("try", "--config", "grpo.yaml", "--answers", write(right))
    assert "is a list of several turns, and the workflow asks for one answer" in one.out + one.err


def test_an_answer_keeps_its_last_token_where_the_tokenizer_names_no_end(run: Run):
    copytree(model_folder("builtin:tiny-addition"), "endless")
    names = json.loads(Path("endless/tokenizer_config.json").read_text())
    del names["eos_token"]
    Path("endless/tokenizer_config.json").write_text(json.dumps(names))
    file = write({"row": 3, "completion": "004"}, {"row": 3, "completion": "9999"})
    words = ("actor.path=endless", "gconfig.max_new_tokens=3")
    done = run("try", "--config", "grpo.yaml", "--answers", file, *words)
    assert done.code == 0, done.err
    assert "answer 1: reward 1 (" in done.out and "ends without an eos_token: '004'\n    2 2 6\n" in done.out
    assert "cut off: '999'" in done.out


def test_each_agent_gets_the_answers_of_its_own_line(run: Run):
    Path("asks.py").write_text(AGENT)

    def answers(calls: int, *completions: Any) -> list[str]:
        words = ("workflow.name=agent", f"agent.command=[python, asks.py, '{calls}']")
        file = write(*({"prompt": PROMPT, "completion": each} for each in completions))
        done = run("try", "--config", "grpo.yaml", *words, "--answers", file)
        assert done.code == 0, done.err
        return [line.split("'")[1] for line in done.out.splitlines() if line.startswith("  answer ")]

    assert answers(1, "046", "004") == ["046<eos>", "004<eos>"]
    assert answers(2, ["046", "004"], ["999", "888"]) == ["046<eos>", "004<eos>", "999<eos>", "888<eos>"]


def test_a_text_of_several_lines_stands_as_it_is():
    tokenizer: Any = SimpleNamespace(decode=lambda ids, skip_special: "\n".join(map(str, ids)))
    answer = Trajectory([7, 8, 9], [0, 0, 1], [0.0] * 3, [-1, -1, 0], 1.0)  # type: ignore[arg-type]
    lines = list(group_report(TriedGroup("row 1", tokenizer, [], [answer]), VoteRule()))
    assert lines[1] == "  prompt, 2 tokens: \n    | 7\n    | 8" and lines[3].endswith("ends by stop: '9'")


def test_the_samples_of_an_episode_are_one_answer_with_one_reward():
    tokenizer: Any = SimpleNamespace(decode=lambda ids, skip_special: "".join(map(str, ids)))
    rewards = [(1.0, 4), (1.0, 4), (1.0, 4), (0.0, None)]
    answers = [
        Trajectory([7, 9], [0, 1], [0.0] * 2, [-1, 0], reward, conversation=number)  # type: ignore[arg-type]
        for reward, number in rewards
    ]
    lines = list(group_report(TriedGroup("row 1", tokenizer, [], answers), VoteRule()))
    named = [line.split(":")[0] for line in lines if line.startswith("  answer ")]
    assert named == [*(f"  answer 1, sample {part} of 3" for part in (1, 2, 3)), "  answer 2"]
    assert lines[-1] == "  spread of rewards: from 0 to 1, deviation 0.5"


@pytest.mark.parametrize(
    ("words", "answers", "problem"),
    [
        ((), [], "answers.jsonl: has no answers"),
        ((), [{"row": 3}], "answers.jsonl:1: is an answer without a text `completion`, or a list of texts"),
        ((), [{"row": -1, "completion": "1"}], "answers.jsonl:1: there is no row -1"),
        ((), [{"prompt": "5", "completion": "1"}], "answers.jsonl:1: no row of the train split of task addition"),
        (("rollout.server_type=openai",), [], "rollout.server_type: try shows the token ids of prompts and answers"),
        (("--multirun",), [], "try [command line]: tries the rows of one configuration; remove --multirun"),
        (("reward.name=exat",), [], "reward.name [override reward.name=exat]: 'exat' is not built in"),
    ],
)
def test_what_cannot_be_tried_is_refused(run: Run, words: tuple[str, ...], answers: list[Any], problem: str):
    assert problem in run.refusal("try", "--config", "grpo.yaml", "--answers", write(*answers), *words)


def test_it_is_for_experiments_that_generate_and_has_its_own_flag(run: Run):
    assert run.refusal("try", "--config", "sft.yaml").startswith("try: is for experiments that generate, not for sft")
    assert "--answers [command line]: is only for the command try" in run.refusal("grpo", "--answers=a.jsonl")
