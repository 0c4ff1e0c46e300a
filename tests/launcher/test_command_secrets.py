"""No output or error of the command line contains a secret.

Secret are the keys marked so, and values under names such as HF_TOKEN or api_key: in maps of variables and
arguments, in `A=1,B=2` texts, in URLs with an account.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.schema import Schema
from tests.support.commands import Run, command_runner

SECRET = "hunter2-is-my-secret"
PLACES = {
    "a marked key": ("stats_logger.wandb.wandb_api_key", f"{SECRET}-0-"),
    "a marked key that may be null": ("stats_logger.swanlab.api_key", f"{SECRET}-1-"),
    "a variable for all": ("launcher.env.HF_TOKEN", f"{SECRET}-2-"),
    "variables for servers": ("launcher.inference_server_env_vars", f"A=1,HF_TOKEN={SECRET}-3-"),
    "variables for trainers": ("launcher.trainer_env_vars", f"MY_API_KEY={SECRET}-4-,A=1"),
    "a flag of an engine": ("vllm.extra_args.api_key", f"{SECRET}-5-"),
    "an entry for a tracker": ("stats_logger.wandb.config.access_token", f"{SECRET}-6-"),
    "an account in an address": ("stats_logger.wandb.wandb_base_url", f"https://me:{SECRET}-7-@host"),
    "the password of a user of etcd": ("cluster.name_resolve.etcd3_password", f"{SECRET}-8-"),
}
"""Where a secret may stand: the key, and its value there."""
IN_MAPS = ("launcher.env", "vllm.extra_args", "stats_logger.wandb.config")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return command_runner(tmp_path, capsys, monkeypatch)


def word(place: str) -> str:
    """The secret as a user types it."""
    key, value = PLACES[place]
    return f"{'+' if key.startswith(IN_MAPS) else ''}{key}='{value}'"


def leaks(text: str) -> list[str]:
    """The places whose secret is in the text."""
    return [place for number, place in enumerate(PLACES) if f"{SECRET}-{number}-" in text]


def write(*places: str) -> str:
    """The secrets as they stand in a file."""
    tree: dict[str, Any] = {"experiment_name": "mine", "actor": {"path": "m"}}
    for key, value in map(PLACES.__getitem__, places):
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    Path("mine.yaml").write_text(json.dumps(tree))
    return "mine"


class TestAnswers:
    @pytest.mark.parametrize("flag", ["--dry-run", "--dry-run=full", "--dry-run=json", "--cfg"])
    def test_no_output_repeats_a_secret(self, run: Run, flag: str) -> None:
        assert leaks(run.answer("--config", "grpo", flag, *map(word, PLACES))) == []
        assert leaks(run.answer("--config", write(*PLACES), flag)) == []

    @pytest.mark.parametrize("place", PLACES)
    def test_no_explanation_repeats_a_secret(self, run: Run, place: str) -> None:
        key = PLACES[place][0]
        assert leaks(run.answer("--config", write(*PLACES), f"--explain={key}", *map(word, PLACES))) == []

    @pytest.mark.parametrize("section", sorted({PLACES[place][0].rpartition(".")[0] for place in PLACES}))
    def test_no_explanation_of_a_section_repeats_a_secret(self, run: Run, section: str) -> None:
        for name in {section, section.partition(".")[0]}:
            assert leaks(run.answer("--config", "grpo", f"--explain={name}", *map(word, PLACES))) == []

    @pytest.mark.parametrize("place", PLACES)
    def test_no_explanation_repeats_an_overridden_secret(self, run: Run, place: str) -> None:
        key, value = PLACES[place]
        beaten, wins = word(place), f"++{key}='{value.replace(SECRET, 'another-secret')}'"
        shown = run.answer("--config", write(place), f"--explain={key}", beaten, wins)
        assert SECRET not in shown
        assert "another-secret" not in shown

    def test_no_refused_start_repeats_a_secret(self, run: Run) -> None:
        assert leaks(run.refusal("--config", "grpo", *map(word, PLACES), "cluster.name_resolve.type=ray")) == []

    def test_no_error_about_another_key_repeats_a_secret(self, run: Run) -> None:
        assert leaks(run.refusal("--config", "grpo", *map(word, PLACES), "seed=x", "actr.path=y")) == []

    @pytest.mark.parametrize("place", PLACES)
    def test_references_to_a_secret_do_not_repeat_it(self, run: Run, place: str) -> None:
        words = [*map(word, PLACES), f"stats_logger.wandb.notes=${{{PLACES[place][0]}}}"]
        assert leaks(run.answer("--config", "grpo", "--dry-run=full", *words)) == []
        assert leaks(run.answer("--config", "grpo", "--explain=stats_logger.wandb.notes", *words)) == []

    @pytest.mark.parametrize("flag", ["--dry-run", "--dry-run=full", "--dry-run=json", "--cfg"])
    def test_no_output_with_references_to_all_secrets_repeats_one(self, run: Run, flag: str) -> None:
        references = [f"${{{key}}}" for key, _ in PLACES.values()]
        own = [f"+stats_logger.wandb.config.note{number}={text}" for number, text in enumerate(references)]
        joined = f"stats_logger.wandb.notes='all {' '.join(references)}'"
        shown = run.answer("--config", "grpo", flag, *map(word, PLACES), *own, joined)
        assert leaks(shown) == []
        assert "<secret>" in shown

    @pytest.mark.parametrize("place", PLACES)
    def test_no_sweep_repeats_a_secret(self, run: Run, place: str) -> None:
        """Whether it is planned or refused: its values would stand in the records of the sweep."""
        key, value = PLACES[place]
        other = value.replace(SECRET, "another-secret")
        sign = "+" if key.startswith(IN_MAPS) else ""
        done = run("--config", "grpo", "-m", "--dry-run", f"{sign}{key}='{value}','{other}'")
        assert done.code in (0, 2)
        assert SECRET not in done.out + done.err
        assert "another-secret" not in done.out + done.err


class TestErrorMessages:
    @pytest.mark.parametrize(
        "text",
        [
            "stats_logger.wandb.wandb_api_key=[{0}]",
            "stats_logger.wandb.wandb_api_key={{a: {0}}}",
            "stats_logger.wandb={{wandb_api_key: {0}, mdoe: 1}}",
            "stats_logger={{wandb: {{wandb_api_key: {0}, mdoe: 1}}}}",
            "stats_logger.wandb.wandb_api_key={0},{0}2",
            "+stats_logger.wandb.wandb_api_key={0}",
            "stats_logger.wandb.wandb_api_key=({0}",
            "stats_logger.wandb.wandb_api_kye={0}",
            "stats_logger.wandb.api_key={0}",
            "wandb_api_key={0}",
            "+launcher.env.HF_TOKEN=[{0}]",
            "launcher.env={{HF_TOKEN: [{0}]}}",
            "launcher.trainer_env_vars=['HF_TOKEN={0}']",
            "seed=${{stats_logger.wandb.wandb_api_key}} stats_logger.wandb.wandb_api_key={0}",
            "+vllm.extra_args.api_key=({0}",
        ],
    )
    def test_an_error_about_a_secret_does_not_repeat_it(self, run: Run, text: str) -> None:
        words = text.format(SECRET).split(" ") if text.startswith("seed") else [text.format(SECRET)]
        done = run("--config", "grpo", *words)
        assert done.code == 2
        assert SECRET not in done.err

    @pytest.mark.parametrize(
        "line",
        [
            "stats_logger: {{wandb: {{wandb_api_key: [{0}]}}}}",
            "stats_logger: {{wandb: {{wandb_api_kye: {0}}}}}",
            "stats_logger: {{wandb: {{wandb_api_key: {0}, wandb_api_key: {0}}}}}",
            "launcher: {{env: {{HF_TOKEN: [{0}]}}}}",
            "launcher: {{trainer_env_vars: ['HF_TOKEN={0}']}}",
            "launcher: {{trainer_env_vars: [{{HF_TOKEN: {0}}}]}}",
        ],
    )
    def test_an_error_about_a_file_does_not_repeat_a_secret(self, run: Run, line: str) -> None:
        Path("example.yaml").write_text(f"experiment_name: example\nactor: {{path: m}}\n{line.format(SECRET)}\n")
        assert SECRET not in run.refusal("--config", "example")

    def test_an_error_about_a_secret_still_names_its_place(self, run: Run) -> None:
        message = run.refusal("--config", "grpo", f"stats_logger.wandb.wandb_api_key=[{SECRET}]")
        assert message.startswith(
            "stats_logger.wandb.wandb_api_key [override stats_logger.wandb.wandb_api_key=<secret>]"
        )


class TestCfg:
    @pytest.mark.parametrize(("key", "blank"), [("wandb.wandb_api_key", ""), ("swanlab.api_key", None)])
    def test_a_literal_secret_is_printed_blank_and_the_rest_loads_again(
        self, run: Run, key: str, blank: str | None
    ) -> None:
        override = f"stats_logger.{key}={SECRET}"
        Path("again.yaml").write_text(run.answer("--config", "grpo", "--cfg", override), encoding="utf-8")
        again, first = load("again.yaml"), load("grpo", [override])
        assert again.get(f"stats_logger.{key}") == blank
        section, name = key.split(".")
        first.values["stats_logger"][section][name] = blank
        assert again.values == first.values

    @pytest.mark.parametrize("place", ["stats_logger.wandb.wandb_api_key", "stats_logger.swanlab.api_key"])
    def test_a_secret_from_the_environment_stays_a_reference(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        monkeypatch.setenv("MY_KEY", SECRET)
        override = f"{place}=${{oc.env:MY_KEY}}"
        printed = run.answer("--config", "grpo", "--cfg", override)
        assert SECRET not in printed
        assert "${oc.env:MY_KEY}" in printed
        Path("again.yaml").write_text(printed, encoding="utf-8")
        assert load("again.yaml").values == load("grpo", [override]).values
        assert load("again.yaml").get(place) == SECRET

    def test_secrets_among_process_variables_are_not_repeated(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_KEY", SECRET)
        override = "+launcher.env.HF_TOKEN=${oc.env:MY_KEY}"
        printed = run.answer("--config", "grpo", "--cfg", override)
        assert SECRET not in printed
        assert "HF_TOKEN" in printed
        assert "${oc.env:MY_KEY}" in printed
        assert SECRET not in run.answer("--config", "grpo", "--explain=launcher.env.HF_TOKEN", override)
        assert SECRET not in run.answer("--config", "grpo", "--explain=launcher", override)

    def test_values_that_are_not_secret_are_shown(self, run: Run) -> None:
        words = [
            "+launcher.env.GREETING=hello",
            "launcher.trainer_env_vars='A=shown'",
            "+vllm.extra_args.max_logprobs=5",
        ]
        printed = run.answer("--config", "grpo", "--cfg", *words)
        assert "GREETING: hello" in printed
        assert "A=shown" in printed
        assert "max_logprobs: 5" in printed
        assert "hello" in run.answer("--config", "grpo", "--explain=launcher.env.GREETING", *words)
        assert "max_new_tokens: 6" in printed


def test_every_key_named_like_a_secret_is_marked_as_one() -> None:
    from areal_like.config.redact import is_secret_name

    for cls in EXPERIMENTS.values():
        for path, key in Schema.of(cls).keys.items():
            assert key.constraints.secret == is_secret_name(path.rpartition(".")[2]), path


def test_the_existence_of_a_secret_is_explained(run: Run) -> None:
    shown = run.answer("--config", "grpo", "--explain", PLACES["a marked key"][0], word("a marked key"))
    assert "<secret>" in shown.splitlines()[0]
    assert "override" in shown
