"""The command line: any order of arguments, clear errors, no needless output or imports.

Most tests run the command in this process. A few need a terminal or a fresh interpreter, and run in a subprocess.
"""

import json
import os
import pty
import re
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from launcher.arguments import parse_arguments
from tests.support.commands import AREAL, REPOSITORY, Run, command_runner, process

ESCAPE = "\x1b["


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return command_runner(tmp_path, capsys, monkeypatch)


class TestOrder:
    WORDS = (["--config", "grpo"], ["--explain=actor.lr"], ["actor.lr=0.5"], ["--replace"], ["gconfig.n_samples=3"])

    def test_flags_and_overrides_can_be_in_any_order(self, run: Run) -> None:
        for order in permutations(self.WORDS):
            read = parse_arguments([word for words in order for word in words])
            assert (read.config, read.explain, read.replace) == ("grpo", "actor.lr", True)
            assert sorted(read.overrides) == ["actor.lr=0.5", "gconfig.n_samples=3"]
        for order in (self.WORDS, self.WORDS[::-1]):
            assert run.answer(*(word for words in order for word in words)).startswith("actor.optimizer.lr = 0.5\n")

    @pytest.mark.parametrize("place", range(4))
    def test_the_verb_may_be_anywhere(self, run: Run, place: int) -> None:
        words: list[str] = ["--config=grpo", "actor.lr=0.5", "--explain=actor.lr"]
        assert run.answer(*words[:place], "run", *words[place:]).startswith("actor.optimizer.lr = 0.5\n")

    def test_overrides_may_be_on_both_sides_of_multirun_and_dry_run(self, run: Run) -> None:
        words = ["actor.lr=1e-4,1e-3", "--multirun", "gconfig.n_samples=2", "--dry-run", "seed=3,4"]
        plans = run.answer("--config", "grpo", *words)
        rows = [line.split() for line in plans.splitlines() if line.endswith("planned")]
        assert [row[2:4] for row in rows] == [[lr, seed] for lr in ("0.0001", "0.001") for seed in "34"]
        assert not list(Path().iterdir())

    def test_the_order_of_groups_and_values_has_no_effect(self, run: Run) -> None:
        first = run.answer("--config", "grpo", "actor=qwen3_0_6b", "actor.path=mine", "--cfg=actor")
        assert run.answer("actor.path=mine", "--cfg=actor", "actor=qwen3_0_6b", "--config", "grpo") == first
        assert "path: mine" in first

    def test_an_optional_flag_value_is_not_taken_from_the_next_word(self, run: Run) -> None:
        assert json.loads(run.answer("--config", "grpo", "--dry-run=json", "actor.lr=0.5"))["experiment"] == "grpo"
        assert "grpo-addition" in run.answer("--config", "grpo", "--dry-run", "actor.lr=0.5")
        assert "lr: 0.5" in run.answer("--config", "grpo", "--cfg", "actor.lr=0.5")
        for flag, word in (("--dry-run", "json"), ("--cfg", "actor")):
            message = run.refusal("--config", "grpo", flag, word)
            assert message.startswith(f"{word} [")
            assert "flag" in message

    @pytest.mark.parametrize("words", [["--config", "grpo"], ["--config=grpo"], ["-c", "grpo"]])
    def test_a_value_follows_its_flag_by_a_space_or_an_equals_sign(self, run: Run, words: list[str]) -> None:
        assert run.answer(*words, "--explain", "seed") == run.answer(*words, "--explain=seed")

    @pytest.mark.parametrize("flag", ["--multirun", "--replace", "--version"])
    def test_a_flag_without_a_value_refuses_one(self, run: Run, flag: str) -> None:
        assert run.refusal("--config", "grpo", f"{flag}=yes").startswith(f"{flag} [command line]: takes no value")

    @pytest.mark.parametrize("flag", ["--config", "--explain"])
    @pytest.mark.parametrize("rest", [[], ["--dry-run"]])
    def test_a_flag_without_its_value_is_refused(self, run: Run, flag: str, rest: list[str]) -> None:
        assert run.refusal(flag, *rest).startswith(f"{flag} [command line]: needs a value")

    def test_empty_values_and_repeated_flags_are_refused(self, run: Run) -> None:
        for flag in ("--dry-run", "--cfg", "--help", "--schema"):
            assert "has an empty value" in run.refusal("--config", "grpo", f"{flag}=")
        assert "is given twice" in run.refusal("--config", "grpo", "--config", "sft")
        assert "--dry-run=json" in run.refusal("--config", "grpo", "--dry-run=yaml")


class TestUnknownArguments:
    @pytest.mark.parametrize(
        ("flag", "suggestion"),
        [("--confg", "--config"), ("--dryrun", "--dry-run"), ("--multi-run", "--multirun"), ("--explian", "--explain")],
    )
    def test_an_unknown_flag_names_the_nearest(self, run: Run, flag: str, suggestion: str) -> None:
        assert f"did you mean {suggestion}?" in run.refusal("--config", "grpo", flag)

    def test_an_unknown_verb_names_the_nearest_and_all(self, run: Run) -> None:
        message = run.refusal("kesy", "--config", "grpo")
        assert "did you mean keys?" in message
        assert "run, serve, eval, chat, audit, keys" in message
        for word, suggestion in (
            ("gropo", "grpo"),
            ("dry-run", "--dry-run"),
            ("resume", "resume=RUN"),
            ("train", "run"),
        ):
            assert f"did you mean {suggestion}?" in run.refusal(word)

    def test_a_key_with_dashes_is_refused_with_the_syntax_of_keys(self, run: Run) -> None:
        assert "a key has no dashes: actor.lr=1e-4 " in run.refusal("grpo", "--actor.lr=1e-4")

    @pytest.mark.parametrize(
        "words", [("grpo.yaml",), ("grpo", "run"), ("./own.yaml",), ("serve", "own"), ("own.yml",)]
    )
    def test_a_file_without_its_flag_is_the_configuration(self, run: Run, words: tuple[str, ...]) -> None:
        Path("own.yaml").write_text("experiment_name: own\nactor: {path: m}\n")
        Path("own.yml").write_text(Path("own.yaml").read_text())
        name = next(word for word in words if word not in ("run", "serve"))
        rest = ("seed=7", "--explain", "seed")
        assert run.answer(*words, *rest) == run.answer("--config", name, *rest)

    def test_a_second_file_and_a_missing_file_are_refused(self, run: Run) -> None:
        assert "is a second configuration beside grpo" in run.refusal("--config", "grpo", "sft.yaml")
        assert "; --schema own.py:MyConfig names a class" in run.refusal("--config", "grpo", "--schema", "own.py")
        assert "Did you mean grpo.yaml?" in run.refusal("gropo.yaml", "seed=1")

    def test_a_run_in_place_of_a_file_is_refused_with_commands_for_runs(self, run: Run) -> None:
        Path("runs/mine").mkdir(parents=True)
        Path("runs/mine/config.yaml").touch()
        assert "resume=runs/mine continues it" in run.refusal("runs/mine")

    @pytest.mark.parametrize(
        "words",
        [
            ("chat", "r", "--config=grpo"),
            ("chat", "r", "--dry-run"),
            ("audit", "r", "--dry-run"),
            ("keys", "--replace"),
        ],
    )
    def test_a_verb_refuses_flags_that_it_does_not_read(self, run: Run, words: tuple[str, ...]) -> None:
        flag = words[-1].partition("=")[0]
        assert run.refusal(*words).startswith(f"{flag} [command line]: has no effect on {words[0]}")

    def test_all_errors_of_a_command_line_are_reported_at_once(self, run: Run) -> None:
        message = run.refusal("rnu", "--confg", "--multirun=3", "--config", "grpo")
        assert all(word in message for word in ("rnu", "--confg", "--multirun"))
        assert "3 problems; nothing was started." in message
        assert run.refusal("stop", "grpo-addition/r0001").splitlines()[1:] == ["1 problem; nothing was started."]

    def test_no_file_is_named(self, run: Run) -> None:
        for words in ([], ["--dry-run"], ["actor.lr=1"], ["run"]):
            assert run.refusal(*words).startswith("--config is missing: ")


class TestSpaces:
    @pytest.mark.parametrize(
        ("words", "suggestion"),
        [
            ("actor.lr 1e-4", "actor.lr=1e-4"),
            ("actor.lr = 1e-4", "actor.lr=1e-4"),
            ("actor.lr =1e-4", "actor.lr=1e-4"),
            ("actor.lr= 1e-4", "actor.lr=1e-4"),
            ("actor.lr", "actor.lr=..."),
            ("actor.learning_rate 1e-4", "actor.learning_rate=1e-4"),
            ("seed -1", "seed=-1"),
            ("total_steps 3", "total_steps=3"),
        ],
    )
    def test_a_key_with_spaces_is_refused_with_the_syntax_of_keys(self, run: Run, words: str, suggestion: str) -> None:
        message = run.refusal("--config", "grpo", *words.split(), "--dry-run")
        assert (
            message.splitlines()[0]
            == f"{suggestion.partition('=')[0]} [command line]: is a key: write {suggestion}, without spaces"
        )


def test_a_toml_file_is_refused_with_the_supported_formats(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rl.toml").write_text("max_steps = 3\n[model]\nname = 'x'\n")
    for words in (["--config", "rl.toml"], ["rl.toml"]):
        message = run.refusal(*words, "--dry-run")
        assert message.startswith("rl.toml: is TOML") and "grpo.yaml" in message and message.count("\n") == 2


class TestErrorMessages:
    def test_a_refused_start_ends_with_the_number_of_problems(self, run: Run) -> None:
        assert run.refusal("--config", "grpo", "seed=x").splitlines()[1:] == ["1 problem; nothing was started."]
        for words in (["--config", "grpo", "seed=x", "--dry-run"], ["chat", "nosuch"], ["--explain", "nosuch", "grpo"]):
            assert run.refusal(*words).splitlines()[1:] == ["1 problem; nothing was started."]
        here = run.refusal("--config", "grpo", "actor.path=./nowhere").splitlines()
        assert here[0] == "this run cannot start here:" and here[-1] == "1 problem; nothing was started."

    def test_an_invalid_value_is_reported_with_its_source(self, run: Run) -> None:
        """Not for each of the keys that copy it by default."""
        Path("mine.yaml").write_text("experiment_name: e\nactor:\n  path: m\ngconfig:\n  temperature: 0\n")
        message = run.refusal("--config", "mine")
        assert "mine.yaml:5" in message
        assert "gconfig.temperature" in message.splitlines()[0]
        assert "problems" not in message

    def test_an_invalid_override_is_quoted_as_typed(self, run: Run) -> None:
        assert "[override temperature=0]" in run.refusal("--config", "grpo", "temperature=0")


class TestConfigName:
    TEXT = "experiment_name: {}\nactor: {{path: m}}\n"

    def write(self, name: str) -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.TEXT.format(path.stem if path.parent == Path() else path.parent.name))
        return path

    def named(self, run: Run, config: str | Path) -> str:
        return run.answer("--config", config, "--explain=experiment_name").splitlines()[0].partition(" = ")[2]

    @pytest.mark.parametrize("config", ["grpo", "grpo.yaml"])
    def test_a_shipped_experiment_is_found_from_anywhere(self, run: Run, config: str) -> None:
        assert self.named(run, config) == "grpo-addition"

    @pytest.mark.parametrize("config", ["grpo", "grpo.yaml", "./grpo", "./grpo.yaml"])
    def test_a_local_file_is_preferred_to_a_shipped_one(self, run: Run, config: str) -> None:
        self.write("grpo.yaml")
        assert self.named(run, config) == "grpo"

    @pytest.mark.parametrize("suffix", ["", ".yaml"])
    def test_a_path_is_used_as_given(self, run: Run, suffix: str) -> None:
        path = self.write("some/folder/grpo.yaml").with_suffix("")
        assert self.named(run, f"{path}{suffix}") == "folder"
        assert self.named(run, f"{path.resolve()}{suffix}") == "folder"

    def test_a_name_with_another_suffix_or_none_is_a_file_too(self, run: Run) -> None:
        self.write("plain")
        self.write("other.yml")
        assert [self.named(run, name) for name in ("plain", "other", "other.yml")] == ["plain", "other", "other"]

    def test_a_folder_of_that_name_is_ignored(self, run: Run) -> None:
        Path("grpo").mkdir()
        assert self.named(run, "grpo") == "grpo-addition"
        Path("mine").mkdir()
        assert "is a directory" in run.refusal("--config", "mine", "--cfg")

    def test_a_file_that_is_not_found_lists_the_shipped_ones(self, run: Run) -> None:
        message = run.refusal("--config", "gropo.yaml", "--dry-run")
        assert all(f"{name}, " in message for name in ("grpo", "ppo", "reward_model", "sft"))
        assert "Did you mean grpo.yaml?" in message
        assert "no such file or shipped experiment" in run.refusal("--config", "/nowhere/at/all.yaml")


class TestColours:
    WORDS = (("--config", "grpo", "--explain", "seed"), ("--config", "grpo", "seed=x"), ("--help=seed",))

    def on_a_terminal(self, *words: str, **environment: str) -> str:
        """What the command writes to a terminal that is its output and its error output."""
        controller, terminal = pty.openpty()
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        child = subprocess.Popen(
            [sys.executable, "-m", "launcher", *words],
            env={**inherited, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **environment},
            stdin=terminal, stdout=terminal, stderr=terminal,
        )  # fmt: skip
        os.close(terminal)
        written = b""
        while True:
            try:
                piece = os.read(controller, 65536)
            except OSError:
                break
            if not piece:
                break
            written += piece
        os.close(controller)
        child.wait(timeout=60)
        return written.decode()

    def test_a_terminal_gets_colours_unless_no_color_is_set(self) -> None:
        for words in self.WORDS:
            assert ESCAPE in self.on_a_terminal(*words)
        for words in self.WORDS[1:]:
            assert ESCAPE not in self.on_a_terminal(*words, NO_COLOR="1")
        assert ESCAPE not in self.on_a_terminal(*self.WORDS[2], TERM="dumb")

    def test_without_a_terminal_output_has_no_colour(self, run: Run) -> None:
        for words in (
            *self.WORDS,
            ("--config", "grpo", "--dry-run"),
            ("--help",),
            ("--config", "grpo", "cluster.type=ray"),
        ):
            done = run(*words)
            assert ESCAPE not in done.out + done.err


class TestProcess:
    CONSOLE = (sys.executable, "-c", "import sys; from launcher.cli import command; sys.exit(command())")

    @pytest.mark.parametrize(
        ("words", "code"), [(["--config", "grpo", "--cfg"], 0), (["--config", "grpo", "seed=x", "--dry-run"], 2)]
    )
    def test_the_module_the_console_script_and_main_do_the_same(self, run: Run, words: list[str], code: int) -> None:
        here = run(*words)
        assert here.code == code
        for command in ((sys.executable, "-m", "launcher"), self.CONSOLE):
            done = process(*words, command=command)
            assert (done.returncode, done.stdout, done.stderr) == here

    def test_the_console_script_is_that_function(self) -> None:
        assert 'areal-like = "launcher.cli:command"' in (REPOSITORY / "pyproject.toml").read_text()

    def imported(self, *words: str) -> set[str]:
        """The top-level modules that a command has imported when it is done."""
        code = (
            "import contextlib, io, json, sys\n"
            "from launcher.cli import main\n"
            "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
            "    main(json.loads(sys.argv[1]))\n"
            "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
        )
        done = process(json.dumps(words), command=(sys.executable, "-c", code))
        assert done.returncode == 0, done.stderr
        return set(json.loads(done.stdout))

    @pytest.mark.parametrize(
        "words",
        [
            ("--config", "ppo", "--dry-run", "cluster.name_resolve.type=etcd3"),
            ("--config", "grpo", "--multirun", "actor.lr=1,2", "--dry-run=json"),
            ("--config", "grpo", "actor=qwen3_0_6b", "rollout=vllm", "cluster=slurm"),
            ("--config", "grpo", "nonsense=1"),
        ],
        ids=["plan", "sweep", "start", "error"],
    )
    def test_no_answer_imports_torch_or_transformers(self, words: tuple[str, ...]) -> None:
        assert not self.imported(*words) & {"torch", "transformers", "numpy", "sglang", "vllm", "ray", "wandb", "grpc"}

    @pytest.mark.parametrize("words", [("--help",), ("--help=actor",), ("keys",), ("--schema",), ("--confg",)])
    def test_help_imports_neither_hydra_nor_omegaconf(self, words: tuple[str, ...]) -> None:
        assert not self.imported(*words) & {"hydra", "omegaconf", "torch", "transformers"}


class TestStart:
    def test_packages_that_a_run_needs_are_checked_before_the_start(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("launcher.checks.packages.REQUIRED_PACKAGES", ("json", "no_such_package"))
        text = run.refusal("--config", "grpo.yaml", "rollout=embedded", "actor=tiny")
        assert "constraints.txt no_such_package installs what a run needs" in text
        assert not list(Path().iterdir())

    @pytest.mark.parametrize(
        ("words", "key"),
        [
            (("rollout=vllm", "vllm.python=/no/python"), "vllm.python"),
            (("rollout.server_addresses=['h:1']", "rollout.api_key_var=NO_SUCH_KEY"), "rollout.api_key_var"),
            (("cluster.name_resolve.type=ray",), "cluster.name_resolve.type"),
            (("cluster.type=ray",), "cluster.type"),
        ],
    )
    def test_a_start_that_is_not_built_is_refused_with_the_alternatives(
        self, run: Run, words: tuple[str, ...], key: str
    ) -> None:
        assert f"\n{key} [" in run.refusal("--config", "grpo.yaml", *words)

    @pytest.mark.parametrize(
        ("name", "key", "message"),
        [
            ("grpo_megatron", "allocation_mode", "megatron"),
            ("sft_megatron", "model.megatron", "FSDP2"),
            ("clevr_grpo", "actor.path", "vision"),
        ],
    )
    def test_a_start_is_refused_with_every_reason(self, run: Run, name: str, key: str, message: str) -> None:
        text = run.refusal("--config", AREAL / f"{name}.yaml")
        lines = text.splitlines()
        assert lines[0] == "this run cannot start here:"
        messages = [line for line in lines if line.startswith(key)]
        assert messages, text
        assert any(message in line for line in messages)

    @pytest.mark.parametrize(
        "words",
        [
            ("--config", AREAL / "gsm8k_ppo.yaml"),
            ("--config", AREAL / "grpo_megatron.yaml"),
            ("--config", "grpo.yaml", "actor.path=./none", "cluster.n_nodes=4", "launcher.env_file=[no.env]"),
        ],
    )
    def test_a_plan_and_a_refused_start_list_the_same_reasons(
        self, run: Run, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("launcher.checks.packages.REQUIRED_PACKAGES", ("no_such_package",))
        title, *refused = run.refusal(*words).splitlines()[:-1]
        assert title == "this run cannot start here:" and len(refused) > 1
        text = run.answer(*words, "--dry-run")
        section = text.partition(f"cannot start here ({len(refused)})")[2].partition("\n\n")[0]
        assert [" ".join(item.split()) for item in section.split("\n  - ")[1:]] == refused
        plan = json.loads(run.answer(*words, "--dry-run=json"))
        assert len(plan["cannot_start"]) + len(plan["needs"]) == len(refused)
        assert not [line for line in plan["warnings"] if line in refused]

    def test_rows_of_an_unknown_dataset_need_a_reward(self, run: Run) -> None:
        text = run.refusal("--config", AREAL / "grpo.yaml", "train_dataset.path=some/rows")
        assert re.search(r"^reward\.name.*set reward\.name=", text, re.MULTILINE), text

    def test_a_reason_names_its_line(self, run: Run) -> None:
        Path("mine.yaml").write_text("experiment_name: e\nactor:\n  path: m\n  backend: megatron:d2\n")
        assert "actor.backend [mine.yaml:4]: " in run.refusal("--config", "mine")

    def test_a_dry_run_of_a_refused_start_shows_the_plan(self, run: Run) -> None:
        assert "cannot start here" in run.answer("--config", AREAL / "grpo_megatron.yaml", "--dry-run")
        assert not list(Path().iterdir())
