"""Compares answers of real servers with transformers, also during weight updates."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.engines import PROBE, LiveServer, Models, logprobs_of, model
from tests.support.server_session import ServerSession, group
from tests.support.tiny_models import EOS_ID

PARITY = 1e-4
"""Maximum difference of log-probabilities of two programs in float32."""
LONG, LONG_OF_OURS, LONG_OF_SLOW = 160, 400, 60
"""Length of an answer that runs long enough for a test to act on it, by the speed of the engine."""
CANNOT_KEEP = ("sglang", "plain")
"""Engines that do not report the weight version of each token."""
SLOW = WITHOUT_CLIENTS = ("plain",)
"""Engines that are not made for load, and those without routes for clients."""
UNSEEDED = ("sglang",)
"""Engines that ignore the seeds of requests on a CPU."""
PENALIZES_ANSWER_ALONE = ("sglang",)
"""Engines whose repetition penalty ignores the prompt."""


def length_of(server: LiveServer) -> int:
    if server.engine in SLOW:
        return LONG_OF_SLOW
    return LONG_OF_OURS if server.engine == "embedded" else LONG


def long_groups(server: LiveServer, count: int, n: int = 1, name: str = "long") -> list[dict[str, Any]]:
    """Requests for answers of exactly this length."""
    exact = {"min_new_tokens": length_of(server), "max_new_tokens": length_of(server)}
    return [group(f"{name}{number}", PROBE[: 1 + number % 5], n, number, **exact) for number in range(count)]


def generating(statistics: dict[str, Any]) -> bool:
    return bool(statistics["running"] > 0)


def logprob_gaps(
    prompt: Sequence[int],
    sample: Mapping[str, Any],
    seeds: Mapping[int, int],
    temperature: float = 1.0,
    never: Sequence[int] = (),
    models: Models = model,
) -> list[float]:
    """How far each log-probability is from that of transformers with the weights of its version: `seeds` says which
    these are. An answer of exact length could not end before."""
    ids, answer = [*prompt, *sample["token_ids"]], len(prompt) - 1
    if len(sample["token_ids"]) in (LONG, LONG_OF_OURS, LONG_OF_SLOW):
        never = (EOS_ID,)
    versions = set(sample["versions"])
    results = {each: logprobs_of(models(seeds[each]), ids, temperature, never)[answer:] for each in versions}
    pairs = zip(sample["logprobs"], sample["versions"], strict=True)
    return [abs(got - float(results[version][at])) for at, (got, version) in enumerate(pairs)]


def largest_gap(prompt: Sequence[int], sample: Mapping[str, Any], seeds: Mapping[int, int], **how: Any) -> float:
    """The largest gap."""
    return max(logprob_gaps(prompt, sample, seeds, **how))


async def keep_in_flight(
    one: ServerSession, count: int, updates: int, tokens: int, pause_s: float
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """So many clients ask for one answer after the other until the last of the updates is served. Returns all answers,
    and which weights each version had."""
    seeds: dict[int, int] = {}
    answered: list[dict[str, Any]] = []
    ends = asyncio.Event()
    exact = {"min_new_tokens": tokens, "max_new_tokens": tokens}

    async def keep_asking(client: int) -> None:
        number, prompt = 0, PROBE[: 1 + client % 8]
        while not ends.is_set():
            (samples,) = await one.generate(group(f"{client}.{number}", prompt, 1, 1000 * client + number, **exact))
            answered.append({"prompt": prompt, **samples[0]})
            number += 1

    async def update() -> None:
        for number in range(1, updates + 1):
            await asyncio.sleep(pause_s)
            await one.update(number % 3)
            seeds[one.server.version] = number % 3
        ends.set()

    await one.update(0)
    seeds[one.server.version] = 0
    await asyncio.gather(update(), *(keep_asking(client) for client in range(count)))
    return answered, seeds


def check_in_flight(answered: list[dict[str, Any]], seeds: dict[int, int], count: int, tokens: int) -> float:
    """None was lost, and versions only grow; returns how far log-probabilities of those that crossed an update are
    off, some of them looked at."""
    assert len(answered) >= count
    for sample in answered:
        assert len(sample["token_ids"]) == tokens
        assert sample["versions"] == sorted(sample["versions"]) and set(sample["versions"]) <= seeds.keys()
    crossing = [sample for sample in answered if len(set(sample["versions"])) > 1]
    assert crossing, "no answer was under way when the weights changed"
    looked_at = crossing[:: max(1, len(crossing) // 40)]
    return max(largest_gap(sample["prompt"], sample, seeds, never=(EOS_ID,)) for sample in looked_at)
