"""No plan contains a secret of the configuration."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.config.redact import Redactor, is_secret_name, scrub
from launcher.plan.build import build_plan
from launcher.plan.render import render
from launcher.plan.render_brief import render_brief
from tests.support.planning import load_text, machine_with

SECRET = "hunter2-is-my-secret"
FILE = """
experiment_name: hidden
actor: {{path: some/model}}
task: {{name: addition}}
{body}
"""
PLACES = {
    "a key marked as secret": "stats_logger: {{wandb: {{wandb_api_key: {0}}}}}",
    "a variable for all": "launcher: {{env: {{HF_TOKEN: {0}, PLAIN: shown}}}}",
    "a variable for servers": "launcher: {{inference_server_env_vars: 'A=1,HF_TOKEN={0}'}}",
    "a variable for trainers": "launcher: {{trainer_env_vars: 'MY_API_KEY={0},A=1'}}",
    "an argument of a workflow": "workflow: {{args: {{judge: {{api_key: {0}}}}}}}",
    "an argument in a list": "workflow: {{args: {{judges: [{{password: {0}}}]}}}}",
    "an account in an address": "rollout: {{server_addresses: ['http://user:{0}@host:1']}}",
    "a flag of vLLM": "rollout: {{backend: vllm}}\nvllm: {{extra_args: {{api-key: {0}}}}}",
    "a flag of SGLang": "rollout: {{backend: sglang}}\nsglang: {{extra_args: {{admin_api_key: {0}}}}}",
    "a reference": "stats_logger: {{wandb: {{wandb_api_key: {0}}}}}\n"
    "launcher: {{env: {{COPY: '${{stats_logger.wandb.wandb_api_key}}'}}}}",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cluster", ["local", "slurm", "ray"])
def test_a_secret_in_the_file_is_not_shown(place, cluster):
    configuration = load_text(FILE.format(body=PLACES[place].format(SECRET)), f"cluster={cluster}")
    assert SECRET in json.dumps(configuration.values)
    plan = build_plan(configuration, host=machine_with(2))
    assert SECRET not in json.dumps(plan.to_json())
    assert SECRET not in render(plan) + render_brief(plan)


@pytest.mark.parametrize(
    "override",
    [
        "stats_logger.wandb.wandb_api_key={0}",
        "+launcher.env.HF_TOKEN={0}",
        "launcher.env={{HF_TOKEN: {0}, B: 2}}",
        "launcher.trainer_env_vars='SOME_PASSWORD={0}'",
        "+workflow.args.credentials={0}",
        "+vllm.extra_args.hf_token={0}",
        "rollout.server_addresses=['https://me:{0}@host/v1']",
    ],
)
def test_a_secret_on_the_command_line_is_not_shown(override):
    body = "rollout: {backend: vllm}"
    once, replaced = (override.format(SECRET),), (override.format(SECRET), override.format("a-later-one"))
    for overrides in (once, replaced):
        plan = build_plan(load_text(FILE.format(body=body), *overrides), host=machine_with(2))
        for shown in (json.dumps(plan.to_json()), render(plan), repr(plan)):
            assert SECRET not in shown
            assert "a-later-one" not in shown


def test_an_overridden_secret_is_not_shown():
    body = f"stats_logger: {{wandb: {{wandb_api_key: {SECRET}}}}}"
    plan = build_plan(load_text(FILE.format(body=body), "stats_logger.wandb.wandb_api_key=another-one"))
    text = json.dumps(plan.to_json())
    assert SECRET not in text
    assert "another-one" not in text


def test_the_run_token_travels_by_environment_and_is_not_shown():
    plan = build_plan(load_text(FILE.format(body="")), host=machine_with(2))
    for process in plan.processes:
        if process.role not in ("guardian", "launcher"):
            assert process.env["AREAL_LIKE_TOKEN"] == "<secret>"


def test_the_plan_names_an_env_file_and_does_not_read_it(tmp_path):
    file = tmp_path / "private.env"
    file.write_text(f"HF_TOKEN={SECRET}\n", "utf-8")
    plan = build_plan(load_text(FILE.format(body=f"launcher: {{env_file: [{file}]}}")), host=machine_with())
    text = json.dumps(plan.to_json())
    assert str(file) in text
    assert SECRET not in text


def test_values_that_are_not_secret_are_shown():
    body = f"launcher: {{env: {{HF_TOKEN: {SECRET}, PLAIN: shown}}}}"
    plan = build_plan(load_text(FILE.format(body=body))).shown()
    trainer = next(process for process in plan.processes if process.role == "trainer")
    assert trainer.env["PLAIN"] == "shown"
    assert trainer.env["HF_TOKEN"] == "<secret>"


@pytest.mark.parametrize(
    "name",
    ["wandb_api_key", "HF_TOKEN", "PRIME_API_KEY", "key", "password", "apiKey", "api-key", "AWS_SECRET_ACCESS_KEY"],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max_new_tokens", "stop_token_ids", "api_key_var", "tokenizer_path", "monkey", "token_mean", "answer_key"]
)
def test_names_that_only_look_like_secrets(name):
    assert not is_secret_name(name)


def test_numbers_and_switches_are_no_secrets():
    redactor = Redactor(frozenset({"a.token"}), {})
    assert [redactor.value("a.token", value) for value in (3, True, None, "")] == [3, True, None, ""]


def test_redaction_keeps_the_rest_of_a_text():
    assert scrub("override a.api_key=x b.max_new_tokens=5") == "override a.api_key=<secret> b.max_new_tokens=5"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("401, sent Authorization: Bearer tok-abcdef123456 to it", "401, sent Authorization: <secret> to it"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': <secret>}"),
        ("got bearer abcdef123456 back", "got bearer <secret> back"),
        ("Incorrect API key provided: tok-ab12cd34.", "Incorrect API key provided: <secret>"),
        ("the password is hunter2xyz, and", "the password is <secret>, and"),
        ("https://a/b?sig=ab%2B&X-Amz-Signature=dead&x=1", "https://a/b?sig=<secret>&X-Amz-Signature=<secret>&x=1"),
        ("x://user:hunter2@host/a", "x://<secret>@host/a"),
        ("sk-proj-abcDEF123456 hf_abcdefGHIJ1234567890 (ghp_abcdefghijklmnop12)", "<secret> <secret> (<secret>)"),
        ("xoxb-1234567890-abcdef AKIAIOSFODNN7EXAMPLE", "<secret> <secret>"),
    ],
)
def test_secrets_in_texts_of_errors_are_not_shown(text, shown):
    assert scrub(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the password is required, and the token is invalid",
        "the token is 151643; the token was <|im_start|>; token is expected at position 12345",
        "API key provided is wrong; Bearer authentication is required",
        "sk-learn-contrib, risk-adjusted-2024-returns, task-force-12345678, hf_hub_download, hf_transfer",
        "https://host/a?page=2&design=x, signature: f(x) -> int, sha256 abcdef1234567890",
    ],
)
def test_texts_that_only_look_like_secrets_are_shown(text):
    assert scrub(text) == text


def test_a_value_that_looks_like_a_token_is_kept_as_processes_read_it():
    path = "/models/hf_abcdefGHIJ1234567890"
    assert Redactor(frozenset(), {}).value("actor.path", path) == path


@pytest.mark.timeout(100)
@pytest.mark.parametrize("part", ["a-", "sk-", "token ", "password is ", "://", "x.key"])
def test_the_time_for_a_long_text_does_not_grow_with_its_square(part):
    """With its square, 300,000 parts take many minutes, and seconds otherwise."""
    assert scrub(f"{part * 300_000}://")


@given(st.text(alphabet=st.characters(codec="ascii", categories=("L", "N")), min_size=8, max_size=30))
def test_a_secret_value_is_redacted_anywhere_in_a_text(secret):
    redactor = Redactor(frozenset({"some.marked"}), {"some": {"marked": secret}})
    assert secret not in redactor.text(f"a {secret} and x={secret}, {secret}")
    assert secret not in str(redactor.value("other", {"deep": [secret, {"er": f"<{secret}>"}]}))


def test_a_process_gets_the_secret_that_the_plan_hides():
    plan = build_plan(load_text(FILE.format(body=f"launcher: {{env: {{HF_TOKEN: {SECRET}}}}}")))
    trainer = next(process for process in plan.processes if process.role == "trainer")
    assert trainer.env["HF_TOKEN"] == SECRET
    assert SECRET not in json.dumps(plan.to_json()) + render(plan)
