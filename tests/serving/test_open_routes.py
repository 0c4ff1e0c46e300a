"""Who may generate: only the run during training; under `serve` clients with the key or on loopback."""

import asyncio
from pathlib import Path

import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.run import Run
from areal_like.serving.control_protocol import CLIENT_PATHS, OPEN_PATHS
from launcher.commands.serve import _check_key, announcement
from tests.support.embedded_servers import SECRET, running
from tests.support.rollout_world import grpo


def run_of(*words: str, serves: bool = True) -> Run:
    return Run(Path(), grpo(*words), "grpo", "r", Path(), Path(), serves)


@pytest.mark.parametrize(
    ("words", "is_open"),
    [
        ((), True),
        (("rollout.host=0.0.0.0",), False),
        (("rollout.host=localhost",), True),
        (("rollout.host=0.0.0.0", "rollout.open_generation=always"), True),
        (("rollout.open_generation=never",), False),
    ],
)
def test_serve_is_open_on_loopback_or_as_configured(words: tuple[str, ...], is_open: bool) -> None:
    assert run_of(*words).opens_generation is is_open
    assert not run_of(*words, "rollout.open_generation=always", serves=False).opens_generation


def test_the_printed_curl_has_the_key_if_it_is_needed() -> None:
    for words, wants in (((), False), (("rollout.open_generation=never",), True)):
        shown = "\n".join(announcement(run_of(*words), ["127.0.0.1:1"], True, "launcher serve"))
        assert ('-H "Authorization: Bearer $OPENAI_API_KEY"' in shown) is wants


def test_servers_without_possible_clients_are_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = run_of("rollout.host=0.0.0.0").config
    with pytest.raises(ConfigError, match=r"rollout\.open_generation: .*OPENAI_API_KEY .* is not set"):
        _check_key(config, {})
    _check_key(config, {"OPENAI_API_KEY": "k"})


def test_a_server_of_a_training_run_generates_for_its_run_alone() -> None:
    asyncio.run(_for_its_run_alone())


async def _for_its_run_alone() -> None:
    key = {"Authorization": f"Bearer {SECRET}"}
    body = {"token_ids": [5, 9], "sampling_params": {"max_tokens": 2}}
    async with running(is_open=False) as client:
        for path in CLIENT_PATHS:
            assert (await client.open("POST", path, body))[0] == 401, path
        for path in OPEN_PATHS:
            async with client.session.get(f"http://{client.address}{path}") as response:
                assert response.status == 200, path
        url = f"http://{client.address}/inference/v1/generate"
        async with client.session.post(url, json=body, headers=key) as response:
            assert response.status == 200
