"""Models of the Hub: one snapshot for all roles, downloaded before the start, or one clear error."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from areal_like.config.problems import ConfigError
from areal_like.models import display_name, model_folder
from launcher.plan.auto import resolved_values
from launcher.plan.build import build_plan
from launcher.runs.fetch import fetch_from_hub
from tests.support.commands import REPOSITORY
from tests.support.fake_runs import start_fake_run
from tests.support.model_hub import NAME, REVISION, hub, in_cache
from tests.support.planning import loaded, machine_with, of_role, plan_of

FILES = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": ""}
MODEL = f"actor.path={NAME}"
TINY = model_folder("builtin:tiny-addition")


@pytest.fixture
def host(tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return machine_with()._replace(directory=tmp_path, hub=tmp_path / "hub")


def autos(plan):
    return {resolved.key: resolved for resolved in plan.auto}


def about(texts, key):
    return [text for text in texts if text.startswith(f"{key}:")]


def test_a_name_becomes_the_snapshot_that_is_in_the_cache_for_all_roles(host):
    in_cache(host.hub, FILES, "f" * 40, main=False)
    snapshot = in_cache(host.hub, FILES)
    plan = plan_of("ppo", MODEL, "actor.kl_ctl=0.1", host=host)
    assert autos(plan)["actor.path"].value == str(snapshot)
    assert REVISION[:12] in autos(plan)["actor.path"].reason
    values = resolved_values(loaded("ppo", MODEL, "actor.kl_ctl=0.1"), plan.auto)
    roles = [values[role]["path"] for role in ("actor", "critic", "ref")]
    served = [values["embedded"]["model_path"], values["vllm"]["model"], values["sglang"]["model_path"]]
    assert {*roles, *served, values["tokenizer_path"]} == {str(snapshot)}
    assert not [warning for warning in plan.warnings if "a start downloads it" in warning]


def test_an_external_engine_gets_the_snapshot(host):
    snapshot = in_cache(host.hub, FILES)
    assert str(snapshot) in of_role(plan_of("grpo", MODEL, "rollout=vllm", host=host), "server")[0].command


def test_keys_with_the_same_hub_name_get_the_same_snapshot(host):
    snapshot = in_cache(host.hub, FILES)
    plan = plan_of("grpo", MODEL, f"tokenizer_path={NAME}", host=host)
    assert {autos(plan)[key].value for key in ("actor.path", "tokenizer_path")} == {str(snapshot)}


def test_an_incomplete_download_is_not_used_as_a_model(host):
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    snapshot = in_cache(host.hub, {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors.index.json": index})
    (snapshot / "one.safetensors").touch()
    plan = plan_of("grpo", MODEL, host=host)
    assert "actor.path" not in autos(plan)
    assert "a start downloads it" in about(plan.warnings, "actor.path")[0]
    (snapshot / "two.safetensors").touch()
    assert "actor.path" in autos(plan_of("grpo", MODEL, host=host))


def test_offline_a_missing_model_is_one_error_with_a_remedy(host, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = plan_of("ppo", MODEL, host=host)
    (need,) = [need for need in plan.needs if NAME in need.message]
    assert need.key == "actor.path"
    for word in ("HF_HUB_OFFLINE", f"python -m areal_like.models.fetch {NAME}", str(host.hub)):
        assert word in need.message
    in_cache(host.hub, FILES)
    assert not plan_of("ppo", MODEL, host=host).needs


def test_an_invalid_hub_name_is_reported_as_a_missing_folder(host):
    needs = {need.key: need.message for need in plan_of("grpo", "actor.path=a/b/c", host=host).needs}
    assert needs["actor.path"] == "there is no folder a/b/c"


def test_a_snapshot_is_shown_by_its_name():
    assert display_name(f"/cache/hub/models--org--tiny/snapshots/{REVISION}") == NAME
    for other in (NAME, "builtin:tiny-addition", "/models/mine"):
        assert display_name(other) == other


@pytest.fixture
def online(host, monkeypatch):
    """A Hub that has the model of the package, and the weights in another format besides."""
    with hub(TINY, {"pytorch_model.bin": b"the same", "README.md": b"# Tiny"}) as server:
        for name, value in {"HF_ENDPOINT": server.address, "HF_HUB_CACHE": str(host.hub)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield server


def test_only_the_needed_files_are_downloaded_and_only_once(online, host, capsys):
    one = loaded("grpo", MODEL)
    assert fetch_from_hub(one, host)
    assert f"actor.path: fetching {NAME} from the Hugging Face Hub" in capsys.readouterr().err
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(online.given)
    assert not {"pytorch_model.bin", "README.md"} & set(online.given)
    assert autos(build_plan(one, host=host))["actor.path"].value.endswith(f"/snapshots/{REVISION}")
    given = list(online.given)
    assert not fetch_from_hub(one, host), "it is there"
    assert online.given == given


@pytest.mark.parametrize("fault", ["no such model", "no network"])
def test_a_failed_model_download_is_one_error_with_a_remedy(online, host, monkeypatch, fault):
    name = "org/other" if fault == "no such model" else NAME
    if fault == "no network":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError) as refusal:
        fetch_from_hub(loaded("ppo", f"actor.path={name}"), host)
    (problem,) = refusal.value.problems
    assert problem.key == "actor.path"
    assert f"python -m areal_like.models.fetch {name}" in problem.message
    why = "refused the download" if fault == "no such model" else "could not be reached"
    assert f", and the Hub {why} (" in problem.message
    assert "Traceback" not in problem.message


def test_a_model_can_be_downloaded_beforehand(online, host):
    command = [sys.executable, "-m", "areal_like.models.fetch", NAME]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert model_folder(NAME) == (host.hub / "models--org--tiny" / "snapshots" / REVISION).resolve()
    assert done.stdout.strip().endswith(f"/snapshots/{REVISION}")


def test_a_run_records_the_revision_used_by_all_roles(online, host, tmp_path):
    ended = start_fake_run(tmp_path, MODEL, steps=1).wait()
    assert ended.code == 0, ended
    assert f"fetching {NAME}" in ended.err
    values = yaml.safe_load((ended.directory / "config.yaml").read_text())
    paths = {values["actor"]["path"], values["embedded"]["model_path"], values["tokenizer_path"]}
    assert {path.rpartition("/")[2] for path in paths} == {REVISION}
    assert NAME in yaml.safe_load((ended.directory / "provenance.yaml").read_text())["actor.path"]["because"]
