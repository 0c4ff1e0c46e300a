"""`rewards`: saved answers are scored by one or more rewards, without a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.data.checked_rows import row_hash
from areal_like.data.datasets import load_datasets
from areal_like.data.row_table import hash_text
from areal_like.data.user_code import SearchFolders
from areal_like.process.identity import KEY_VARIABLE
from areal_like.rollout.episodes.main import open_tokenizer
from launcher.commands import rewards as commands_rewards
from launcher.commands import saved_answers
from launcher.plan.build import build_plan
from launcher.supervisor.run_lock import lock_run
from tests.support.chat_service import KEY, chat_service, completion
from tests.support.commands import Run, command_runner, process

ROWS = [
    {"prompt": "1+1=", "answer": "2", "completion": "2"},
    {"prompt": "1+1=", "answer": "2", "completion": "it is 2"},
    {"prompt": "1+2=", "answer": "three", "completion": "3"},
]
SUM = "[{name: exact}, {name: model, args: {path: none}}]"
MEETS = """
import os, time

def meets(prompt, completion):
    folder = os.path.join(os.path.dirname(__file__), "here")
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, str(os.getpid())), "w").close()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    if completion == "3":
        open(os.path.join(folder, "large"), "wb").write(bytes(2000000))
    return 1.0
"""


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    return command_runner(tmp_path, capfd, monkeypatch)


def test_rewards_are_reported_with_their_failures_and_compared(run: Run):
    done = run("rewards", "answers.jsonl", "--reward", "exact", "--reward=numeric,tolerance=0.5")
    assert done.code == 0
    assert "exact: 3 answers to 2 prompts, 0 failed" in done.out
    assert "numeric: 3 answers to 2 prompts, 1 failed" in done.out
    assert "failed: 1 times, first answers.jsonl:5: numeric failed after one try: ValueError: the row's" in done.out
    assert "exact and numeric: 1 of 2 answers have equal rewards" in done.out


def test_arguments_are_those_of_yaml_and_the_same_reward_may_have_several(run: Run):
    Path("mine.py").write_text("def kinds(prompt, completion, tags, limit):\n    return limit * len(tags)\n")
    words = ["mine.py:kinds,tags=[a,b],limit=0.5", "mine.py:kinds,tags='x,y',limit=2"]
    done = run("rewards", "answers.jsonl", *(f"--reward={word}" for word in words))
    assert "mine.py:kinds,tags=[a,b],limit=0.5: 3 answers" in done.out
    assert "mean 1, deviation 0" in done.out
    assert "mean 6, deviation 0" in done.out


def test_a_reward_that_hangs_ends_its_answer_alone(run: Run):
    Path("mine.py").write_text(
        "import time\n\ndef hangs(prompt, completion):\n    return time.sleep(600) if 'is' in completion else 1\n"
    )
    done = run("rewards", "answers.jsonl", "--reward", "mine.py:hangs", "reward.timeout_s=0.5")
    assert done.code == 0
    assert "3 answers to 2 prompts, 1 failed" in done.out
    assert "failed: 1 times, first answers.jsonl:3: mine.py:hangs failed after one try: it took longer" in done.out


def test_a_judge_over_an_api_that_already_runs_scores_answers(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with chat_service(lambda body: completion(f"Score: {9 if 'it is' in str(body) else 4}")) as (service, url):
        done = run("rewards", "answers.jsonl", "--reward", f"judge,url={url},model=any,api_key_var=JUDGE_KEY")
    assert done.code == 0, done.err
    assert "judge: 3 answers to 2 prompts, 0 failed" in done.out and "from 0.4 to 0.9" in done.out
    assert len(service.asked) == 3 and {body["model"] for body in service.asked} == {"any"}
    refused = run.refusal("rewards", "answers.jsonl", "--reward", f"judge,url={url},model=any,api_key_var=NO_KEY")
    assert "NO_KEY" in refused


def test_answers_are_scored_several_at_once_within_the_limits_of_the_section(run: Run):
    """Each waits for another one."""
    Path("mine.py").write_text(MEETS)
    words = ("reward.processes=2", "reward.max_file_gb=0.001", "reward.timeout_s=60")
    done = run("rewards", "answers.jsonl", "--reward", "mine.py:meets", *words)
    assert "meets: 3 answers to 2 prompts, 1 failed" in done.out
    assert "(reward.max_file_gb=0.001)" in done.out


@pytest.fixture
def evaluated(run: Run, request: pytest.FixtureRequest) -> Path:
    """A run with the saved answers of an evaluation, to rows 3 and 4; the parameter is an override of it."""
    own = [request.param] if hasattr(request, "param") else []
    loaded = load("grpo.yaml", ["cluster.fileroot=runs", "trial_name=t", "experiment_name=sums", *own])
    locked = lock_run(loaded, build_plan(loaded), "id", False)
    locked.release()
    config = locked.run.config
    rows = load_datasets(config, SearchFolders(Path(), Path()), open_tokenizer(config, Path())).of("valid")
    folder = locked.run.directory / "evaluations" / "step_000002"
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [
        {"row": at, "row_hash": hash_text(row_hash(rows.rows[at])), "answer": answer, "reward": reward}
        for at, answer, reward in ((3, rows.rows[3]["answer"], 0.5), (4, "no", None))
    ]
    lines.append({"row": 5, "row_hash": "0" * 16, "error": "reward: no"})
    (folder / "valid.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "valid.jsonl"


def test_answers_of_a_run_are_joined_with_their_rows_and_compared_with_its_rewards(run: Run, evaluated: Path):
    done = run("rewards", "sums/t", "--reward", "exact", "--reward", "task", "cluster.fileroot=runs", "step=2")
    assert done.code == 0, done.err
    assert "exact: 2 answers to 2 prompts, 0 failed" in done.out and "mean 0.5, deviation 0.5" in done.out
    assert "exact and that of the run: 0 of 1 answer have equal rewards" in done.out
    assert "task and that of the run: 0 of 1 answer" in done.out


def test_without_a_name_the_reward_is_that_of_the_run(run: Run, evaluated: Path):
    done = run("rewards", "sums/t", "cluster.fileroot=runs")
    assert "addition: 2 answers to 2 prompts, 0 failed" in done.out, done.err
    assert "addition and that of the run: 0 of 1 answer" in done.out


def test_a_sum_is_given_as_in_a_configuration(run: Run):
    parts = "[{name: exact, weight: 2}, {name: length, weight: -0.5, args: {limit: 3}, label: long}]"
    done = run("rewards", "answers.jsonl", f"reward.parts={parts}", "--reward", "exact")
    assert "the sum of exact, long: 3 answers to 2 prompts, 0 failed" in done.out, done.err
    assert "exact and the sum of exact, long: " in done.out and "parts: exact 0.3333, long " in done.out


@pytest.mark.parametrize(("words", "count"), [((), 3), (("rollouts=4",), 2), (("rollouts=all",), 5)])
def test_rollouts_of_training_are_scored_too(run: Run, evaluated: Path, words: tuple[str, ...], count: int):
    """Without an evaluation those of the last step; the samples of a conversation are one answer."""
    directory = evaluated.parents[2]
    config = load("grpo.yaml").config
    rows = load_datasets(config, SearchFolders(Path(), Path()), open_tokenizer(config, Path())).train
    evaluated.unlink()
    for step, answers in ((4, [(0, "4"), (1, "no")]), (7, [(0, "a"), (0, "b"), (1, "c"), (2, "d")])):
        lines = [
            {"group": 5, "conversation": number, "row": 9, "row_hash": hash_text(row_hash(rows.rows[9])), "reward": 1.0}
            | {"answer": answer}
            for number, answer in answers
        ]
        file = directory / "rollouts" / f"step_{step:06d}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("mine.py").write_text("def lines(prompt, completion):\n    return 1 + completion.count(chr(10))\n")
    done = run("rewards", "sums/t", "--reward", "mine.py:lines", "cluster.fileroot=runs", *words)
    assert f"lines: {count} answers to 1 prompt" in done.out, done.err
    assert ("step_000007.jsonl:1  'a b'" in done.out) is (words != ("rollouts=4",))
    assert f"training rollouts of {directory.resolve()}, step {'4' if words else '7'}" in done.out


def test_each_run_of_an_agent_is_an_answer_with_its_own_reward(run: Run, evaluated: Path):
    directory = evaluated.parents[2]
    config = load("grpo.yaml").config
    row = load_datasets(config, SearchFolders(Path(), Path()), open_tokenizer(config, Path())).train.rows[9]
    place = {"group": 5, "conversation": 0, "row": 9, "row_hash": hash_text(row_hash(row))}
    solver, checker = {"agent": "solver"}, {"agent": "checker"}
    lines = [
        {**place, **solver, "answer": "a", "reward": 1.0},
        {**place, **solver, "answer": "b", "reward": 1.0},
        {**place, **checker, "answer": "c", "reward": 0.5},
        {**place, **checker, "run": 1, "answer": "d", "reward": 0.0},
    ]
    (directory / "rollouts").mkdir()
    (directory / "rollouts" / "step_000004.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("mine.py").write_text(
        "def seen(prompt, completion):\n    return {'a\\nb': 1.0, 'c': 0.5, 'd': 0.0}[completion]\n"
    )
    done = run("rewards", "sums/t", "--reward", "mine.py:seen", "cluster.fileroot=runs", "rollouts=4")
    assert "seen: 3 answers to 1 prompt, 0 failed" in done.out, done.err
    assert "seen and that of the run: 3 of 3 answers have equal rewards" in done.out


ENVIRONMENTS = [
    *("task.name=null", "reward.name=null", "train_dataset.path=", "valid_dataset=null"),
    "environments.train=[{id: addition, name: sums}, {id: reversing, name: words, reward: {name: mine.py:seen}}]",
]


def test_rollouts_of_environments_are_scored_by_the_reward_of_each(run: Run):
    Path("mine.py").write_text("def seen(prompt, completion):\n    return 0.25\n")
    words = ["cluster.fileroot=runs", "trial_name=t", "experiment_name=sums", *ENVIRONMENTS]
    loaded = load("grpo.yaml", words)
    locked = lock_run(loaded, build_plan(loaded), "id", False)
    locked.release()
    rows = load_datasets(locked.run.config, SearchFolders(Path(), Path()), open_tokenizer(locked.run.config, Path()))
    lines = [
        {"group": at, "conversation": 0, "row": at, "row_hash": hash_text(row_hash(rows.train.rows[at]))}
        | {"answer": rows.train.rows[at]["answer"], "reward": 1.0 if rows.train.environment(at) == "sums" else 0.25}
        for at in range(4)
    ]
    folder = locked.run.directory / "rollouts"
    folder.mkdir()
    (folder / "step_000001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("rewards", "sums/t", "--reward", "task", "cluster.fileroot=runs", "rollouts=all")
    assert "task: 4 answers to 4 prompts, 0 failed" in done.out, done.err
    assert "mean 0.625" in done.out and "from 0.25 to 1" in done.out
    assert "task and that of the run: 4 of 4 answers have equal rewards" in done.out


def test_rollouts_that_are_not_there_are_refused(run: Run, evaluated: Path):
    words = ("rewards", "sums/t", "--reward", "exact", "cluster.fileroot=runs")
    assert "rollouts: " in (none := run.refusal(*words, "rollouts=3")) and "rollout.dump_to_file=true" in none
    assert "keep one" in run.refusal(*words, "rollouts=3", "step=2")


def test_answers_to_rows_that_have_changed_are_refused(run: Run, evaluated: Path):
    evaluated.write_text(evaluated.read_text().replace('"row": 3', '"row": 6'))
    refused = run.refusal("rewards", "sums/t", "--reward", "exact", "cluster.fileroot=runs")
    assert "valid.jsonl:1: its row cannot be read again: valid_dataset: row 6 of" in refused
    other = run.refusal("rewards", "sums/t", "--reward", "exact", "cluster.fileroot=runs", "step=7")
    assert "there is no evaluation of this step" in other


def test_what_is_computed_from_large_data_files_is_removed(run: Run, evaluated: Path, monkeypatch: pytest.MonkeyPatch):
    folders: list[Path] = []

    def loaded(config: Any, places: Any, tokenizer: Any, record: Path) -> Any:
        folders.append(record.parent)
        assert record.parent.is_dir()
        return load_datasets(config, places, tokenizer, record)

    monkeypatch.setattr(saved_answers, "load_datasets", loaded)
    assert run("rewards", "sums/t", "--reward", "exact", "cluster.fileroot=runs").code == 0
    assert len(folders) == 1 and not folders[0].exists()


@pytest.mark.parametrize("evaluated", ["rollout.server_addresses=['h:1']"], indirect=True)
def test_rewards_do_not_see_the_key_of_the_servers_of_the_run(
    run: Run, evaluated: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(KEY_VARIABLE, "")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    Path("mine.py").write_text(
        "import os\n\ndef sees(prompt, completion, key=None):\n    return float('OPENAI_API_KEY' in os.environ)\n"
    )
    words = ("rewards", "sums/t", "cluster.fileroot=runs", "--reward")
    assert "mean 0, deviation 0" in run(*words, "mine.py:sees").out
    assert "mean 1, deviation 0" in run(*words, "mine.py:sees,key=OPENAI_API_KEY").out


@pytest.mark.parametrize("evaluated", ["reward.sandbox=rlimits"], indirect=True)
def test_the_sandbox_of_the_run_is_used_unless_another_is_given(
    run: Run, evaluated: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(kind: str) -> str:
        return f"{kind} is broken" if kind == "bubblewrap" else ""

    monkeypatch.setattr(commands_rewards, "sandbox_problem", broken)
    Path("mine.py").write_text(
        "from areal_like import Sandbox\n\n"
        "def shown(prompt, completion):\n    return float(Sandbox is not None)\n\n"
        "def unused():\n    return Sandbox()\n"
    )
    words = ("rewards", "sums/t", "--reward", "mine.py:shown", "cluster.fileroot=runs")
    done = run(*words)
    assert done.code == 0 and "shown: 2 answers to 2 prompts, 0 failed" in done.out, done.err
    assert "bubblewrap is broken" in run.refusal(*words, "reward.sandbox=bubblewrap")
    of_file = run.refusal("rewards", "answers.jsonl", "--reward", "mine.py:shown")
    assert "bubblewrap is broken" in of_file


def test_half_a_character_of_an_answer_is_read_as_a_question_mark(run: Run):
    Path("mine.py").write_text("def marks(prompt, completion, big):\n    return completion.count('?') + big % 10\n")
    lines = [{"prompt": "1+1=", "completion": "2 \ud83d", "big": 10**30 + 4}]
    Path("half.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("rewards", "half.jsonl", "--reward", "mine.py:marks")
    assert done.code == 0 and "0 failed" in done.out and "mean 5, deviation 0" in done.out


def test_a_reward_that_cannot_be_imported_is_one_message(run: Run):
    Path("mine.py").write_text("import nothing_of_that_name\n\ndef reward(prompt, completion):\n    return 1.0\n")
    done = process("rewards", "answers.jsonl", "--reward", "mine.py:reward")
    assert done.returncode == 2 and done.stderr.startswith("reward.name: mine.py cannot be imported: ")
    assert "Traceback" not in done.stderr and "line 1: ModuleNotFoundError" in done.stderr


def test_equal_answers_to_rows_with_other_columns_may_have_other_rewards(run: Run):
    lines = [{"prompt": "how many?", "answer": answer, "completion": "2"} for answer in "23"]
    Path("same.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = run("rewards", "same.jsonl", "--reward", "exact").out
    assert "mean 0.5" in report and "not steady" not in report


def test_a_reward_that_fails_for_all_answers_fails(run: Run):
    Path("mine.py").write_text("def broken(prompt, completion):\n    return completion.nothing\n")
    done = run("rewards", "answers.jsonl", "--reward", "mine.py:broken")
    assert done.code == 1
    assert "0 failed" not in done.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--reward", "exat"], "reward.name [--reward exat]: 'exat' is not built in; did you mean exact?"),
        (["--reward", "exact,tak=tag"], "reward.args.tak [--reward exact,tak=tag]: exact takes no such argument"),
        (
            ["--reward", "model"],
            "reward.args.path [--reward model]: is missing; model needs it: --reward model,path=PATH",
        ),
        (
            ["--reward", "model,path=none"],
            "reward.args.path [--reward model,path=none]: none is neither a folder nor in",
        ),
        (
            ["--reward", "model,path=here,pat=1"],
            "reward.args.pat [--reward model,path=here,pat=1]: model takes no such",
        ),
        ([f"reward.parts={SUM}"], f"reward.parts.1.args.path [reward.parts={SUM}]: none is neither a folder nor in"),
        (["reward.parts=[{name: exat}]"], "reward.parts.0.name [override reward.parts=[{name: exat}]]: 'exat' is not"),
        (["reward.parts=[{name: task}]"], "reward.parts.0.name: is the reward of the task, but task.name is null"),
        (["--reward", "length,limit=9,unit=chars"], ": is 'chars'; expected one of characters, words"),
        (["--reward", "regex,pattern=2"], ': is 2; expected a regular expression; quote it: pattern="2"'),
        (["--reward", "length"], "is missing; length needs it: --reward length,limit=LIMIT"),
        (["--reward", "task"], "reward.name: is the reward of the task, and there is no task: name a reward"),
        (["--reward", "exact,tag"], "--reward [exact,tag]: 'tag' is no argument; write NAME,argument=value"),
        ([], "--reward [command line]: is missing"),
        (["--reward"], "--reward [command line]: needs a value"),
        (["--reward=exact", "seed=1"], "seed=1 [command line]: rewards FILE takes only limits of `reward`"),
        (["--reward=exact", "reward.timeout_s=0"], "reward.timeout_s [command line]: 0.0 is out of range; expected"),
        (["--reward=exact", "rollout.setup_timeout=5"], "rollout.setup_timeout [command line]: only the server of a"),
        (["--reward=exact", "reward.name=math"], "reward.name [command line]: rewards takes of this section only"),
        (["--reward=exact", "reward.sandbox=x"], "reward.sandbox [command line]: 'x' is not one of bubblewrap"),
        (["--reward=exact", "--dry-run"], "--dry-run [command line]: has no effect on rewards"),
        (["--reward=needy.py:needy"], "answers.jsonl:1: has no 'choices', which the reward needy.py:needy needs"),
    ],
)
def test_what_cannot_be_tried_is_refused(run: Run, words: list[str], problem: str):
    Path("needy.py").write_text("def needy(prompt, completion, choices):\n    return 1\n")
    assert problem in run.refusal("rewards", "answers.jsonl", *words)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "a.jsonl: cannot be read: No such file"),
        ("", "a.jsonl: has no answers"),
        ("{", "a.jsonl:1: is not a line of JSON"),
        ("[]", "a.jsonl:1: has no 'prompt'"),
        ('{"prompt": "a"}', "a.jsonl:1: has no 'completion'"),
        ('{"prompt": "a", "completion": 3}', "a.jsonl:1: completion is 3; it must be a text"),
    ],
)
def test_a_file_that_has_no_answers_is_refused(run: Run, content: str | None, problem: str):
    if content is not None:
        Path("a.jsonl").write_text(content)
    assert run.refusal("rewards", "a.jsonl", "--reward", "exact").startswith(problem)


def test_other_commands_refuse_its_flag_and_it_needs_a_file(run: Run):
    assert "--reward [command line]: is only for the command rewards" in run.refusal("grpo", "--reward=exact")
    assert "rewards [command line]: needs RUN|FILE" in run.refusal("rewards")
