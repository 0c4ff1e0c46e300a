"""Attached servers: checks of addresses and keys before the start."""

import pytest

from tests.support.planning import machine_with, of_role, plan_of, strings

KEY = "rollout.server_addresses"


def addressed(*addresses, **rest):
    return plan_of("grpo", f"{KEY}=[{','.join(map(repr, addresses))}]", **rest)


def against(plan):
    return {obstacle.key: obstacle.message for obstacle in plan.cannot_start}


def needs(plan):
    return {need.key: need.message for need in plan.needs}


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of-my-servers")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8000", "node7:80", "http://node7:80", "http://h:80/", "[::1]:80", "h:80/v1", "http://h:80/v1/"],
)
def test_valid_addresses_are_accepted(address, key):
    plan = addressed(address)
    assert (against(plan), needs(plan)) == ({}, {})
    assert of_role(plan, "server")[0].command[-1] == address


@pytest.mark.parametrize(
    ("addresses", "number", "message"),
    [
        (["node7"], 0, "host:port"),
        (["h:1", ""], 1, "host:port"),
        (["https://h:1"], 0, "https is not supported"),
        (["h:1", "h:2", "h:1"], 2, "twice"),
        (["h:1", "http://h:1/v1"], 1, "twice"),
        (["http://h:1/v2"], 0, "host:port"),
        (["http://me:hunter22@h:1"], 0, "OPENAI_API_KEY"),
    ],
)
def test_an_invalid_address_is_refused_by_its_index(addresses, number, message, key):
    assert message in against(addressed(*addresses))[f"{KEY}[{number}]"]


@pytest.mark.shows("rollout.api_key_var")
def test_the_key_is_read_from_file_or_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "export OPENAI_API_KEY=" in needs(addressed("h:1"))["rollout.api_key_var"]
    (tmp_path / "keys.env").write_text("OWN_KEY=of-my-servers\n")
    words = (f"{KEY}=['h:1']", "rollout.api_key_var=OWN_KEY", f"launcher.env_file=[{tmp_path / 'keys.env'}]")
    assert needs(plan_of("grpo", *words)) == {}
    monkeypatch.setenv("OWN_KEY", "of-my-servers")
    assert needs(plan_of("grpo", *words[:2])) == {}


def test_the_key_itself_is_in_no_plan(key):
    plan = addressed("h:1")
    assert not [text for text in strings(plan.to_json()) if "of-my-servers" in text]
    assert not [word for process in plan.processes for word in process.command if "of-my-servers" in word]


@pytest.mark.shows("rollout.server_type")
def test_a_service_that_takes_no_weights_is_refused_in_training(key):
    plan = plan_of("grpo", f"{KEY}=['h:1']", "rollout.server_type=openai")
    assert "cannot load new weights" in against(plan)["rollout.server_type"]
    assert against(plan_of("grpo", "rollout.server_type=openai")) == {}, "it is not used"


def test_the_controller_waits_for_one_process_per_attached_server(key):
    from areal_like.rollout.settings import rollout_settings
    from tests.support.planning import loaded

    addresses = f"{KEY}=['h:1','h:2','h:3']"
    assert rollout_settings(loaded("grpo", addresses, "rollout.backend=embedded:d2").config).num_servers == 3
    assert len(of_role(plan_of("grpo", addresses, host=machine_with(4)), "server")) == 3
