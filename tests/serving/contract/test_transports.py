"""Weights by broadcast or as an adapter, on every engine."""

import asyncio
from pathlib import Path

import pytest

from areal_like.process.errors import HttpError
from areal_like.weights.flat_buckets import FlatWeights
from tests.support.embedded_adapters import logprobs_by
from tests.support.engine_answers import PARITY, generating, largest_gap, length_of, long_groups
from tests.support.engine_environments import only_on
from tests.support.engine_transports import Adapters, send
from tests.support.engines import PROBE, LiveServer, logprobs_of, model
from tests.support.server_session import ServerSession, group, in_session
from tests.support.tiny_models import EOS_ID

WITH_ADAPTERS = ("embedded", "vllm")


def test_broadcast_weights_give_the_answers_of_the_new_model(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        response = await send(one, 2)
        assert response["version"] == server.version
        assert response["probe_logprobs"] == pytest.approx(logprobs_of(model(2), PROBE).tolist(), abs=PARITY)
        requested = group("g", n=4, max_new_tokens=32)
        (samples,) = await one.generate(requested)
        assert max(largest_gap(requested["prompt"], sample, {server.version: 2}) for sample in samples) <= PARITY
        await send(one, 1)  # and again, in a new group
        (samples,) = await one.generate(requested)
        assert max(largest_gap(requested["prompt"], sample, {server.version: 1}) for sample in samples) <= PARITY

    in_session(server, test)


def test_requests_cross_an_update_that_is_sent(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        old, requested = server.version, long_groups(server, 5)
        answers = asyncio.ensure_future(one.generate(*requested))
        await one.until(generating)
        await send(one, 2)
        crossed = 0
        for response, (sample,) in zip(requested, await answers, strict=True):
            assert len(sample["token_ids"]) == length_of(server) and sample["versions"] == sorted(sample["versions"])
            assert largest_gap(response["prompt"], sample, {old: 1, server.version: 2}) <= PARITY
            crossed += len(set(sample["versions"])) == 2
        assert crossed > 0

    in_session(server, test)


def test_a_tensor_damaged_in_transfer_is_named_and_the_old_weights_stay(server: LiveServer) -> None:
    def damage(flat: FlatWeights) -> None:
        flat.contents[0][flat.contents[0].numel() // 2] ^= 1

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        old = server.version
        with pytest.raises(HttpError, match=r"tensor \S+ .*is corrupted") as refused:
            await send(one, 2, damage=damage)
        assert refused.value.status == 409
        (samples,) = await one.generate(group("g"))
        assert largest_gap(PROBE[:5], samples[0], {old: 1}) <= PARITY
        await send(one, 2)
        (samples,) = await one.generate(group("g"))
        assert largest_gap(PROBE[:5], samples[0], {server.version: 2}) <= PARITY

    in_session(server, test)


def test_a_stale_sent_version_is_refused_before_anything_is_received(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.update(1)
        with pytest.raises(HttpError, match="stale") as refused:
            await send(one, 2, version=server.version)
        assert refused.value.status == 409
        (samples,) = await one.generate(group("g"))
        assert largest_gap(PROBE[:5], samples[0], {server.version: 1}) <= PARITY

    in_session(server, test)


# Adapters alone.


@only_on(*WITH_ADAPTERS)
def test_an_adapter_is_served_and_running_requests_end_on_theirs(server: LiveServer, tmp_path: Path) -> None:
    async def test(one: ServerSession) -> None:
        await one.update(1)
        adapters = Adapters(one, tmp_path)
        response = await adapters.update(1)
        first = server.version
        assert response["probe_logprobs"] == pytest.approx(logprobs_by(adapters.reference(1), PROBE), abs=PARITY)
        answers = asyncio.ensure_future(one.generate(*long_groups(server, 3)))
        await one.until(generating)
        await adapters.update(2)
        after = await one.generate(*long_groups(server, 3, name="after"))
        for version, number, results in ((first, 1, await answers), (server.version, 2, after)):
            for response, (sample,) in zip(long_groups(server, 3), results, strict=True):
                assert set(sample["versions"]) == {version}
                ids = [*response["prompt"], *sample["token_ids"]]
                expected = logprobs_of(adapters.reference(number), ids, never=(EOS_ID,))[len(response["prompt"]) - 1 :]
                apart = zip(sample["logprobs"], expected.tolist(), strict=True)
                assert max(abs(mine - other) for mine, other in apart) <= PARITY

    in_session(server, test)


@only_on(*WITH_ADAPTERS)
def test_a_damaged_adapter_is_refused_by_name(server: LiveServer, tmp_path: Path) -> None:
    async def test(one: ServerSession) -> None:
        await one.update(1)
        adapters = Adapters(one, tmp_path)
        await adapters.update(1)
        body = adapters.published(2)
        file = Path(body["folder"]) / "adapter_model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        refused = await one.refusal("/control/update_weights", body)
        assert refused.status == 409 and "lora_" in refused.message and "corrupted" in refused.message
        stale = await one.refusal("/control/update_weights", adapters.published(2, server.version))
        assert stale.status == 409 and "stale" in stale.message
        (samples,) = await one.generate(group("g"))
        assert set(samples[0]["versions"]) == {server.version}

    in_session(server, test)
