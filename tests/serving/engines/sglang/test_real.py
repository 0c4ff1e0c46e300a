"""A real SGLang on a CPU: token guard and generation."""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.process.identity import RUN_HEADER
from areal_like.process.process_tree import descendants_of
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.engines.base import EngineInfo, GenerateOutput, GenerateRequest
from areal_like.serving.engines.sglang.engine import SGLangEngine
from tests.support.engine_environments import only_on
from tests.support.engines import AT_ONCE, SECRET, SHAPE
from tests.support.sglang_servers import EXACT, PROMPT, SGLangAlone, reference
from tests.support.tiny_models import EOS_ID

pytestmark = only_on("sglang")

OPEN = ("/health", "/ping")


def generated(server: SGLangAlone, n: int = 1, /, **sampling: Any) -> list[GenerateOutput]:
    requested = GenerateRequest("a", PROMPT, n, 3, {"max_new_tokens": 24, **sampling})
    return server.ask(lambda engine: engine.generate(requested))


def logits_of(output: GenerateOutput, seed: int = 0) -> torch.Tensor:
    """Before each token of the answer."""
    ids = torch.tensor([PROMPT + output.token_ids])
    with torch.no_grad():
        logits: torch.Tensor = reference(seed)(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].float()
    return logits


def assert_logprobs(output: GenerateOutput, logits: torch.Tensor) -> None:
    expected = logits.log_softmax(-1).gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(output.logprobs), expected, atol=EXACT, rtol=0)


# The guard.


def test_no_route_of_the_server_answers_without_the_token(sglang: SGLangAlone):
    paths = json.loads(_call(sglang, "/openapi.json", token=SECRET)[2])["paths"]
    assert len(paths) > 60
    for path, methods in paths.items():
        for method in methods:
            if (method, path) in [("get", one) for one in OPEN]:
                continue
            status, headers, _ = _call(sglang, path.replace("{", "").replace("}", ""), method.upper())
            assert status == 401, (method, path)
            assert headers[RUN_HEADER] == sglang.live.start_id
    for path in ("/metrics", "/docs", "/no/such/route"):
        assert _call(sglang, path)[0] == 401
    assert [_call(sglang, path)[0] for path in OPEN] == [200, 200]
    ProofVerifier(SECRET, sglang.live.start_id).check(asyncio.run(request_proof(sglang.address)))


def _call(sglang: SGLangAlone, path: str, method: str = "GET", token: str | None = None) -> tuple[int, Any, bytes]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://{sglang.address}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers, refusal.read()


# Generation.


def test_ready_reports_the_engine(sglang: SGLangAlone):
    facts = sglang.ask(lambda engine: engine.ready())
    assert facts == EngineInfo(
        "sglang",
        facts.version,
        str(sglang.model),
        512,
        SHAPE["vocab_size"],
        (EOS_ID,),
        dtype="float32",
        length_key="sglang.context_length",
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_of_the_sampled_distribution(sglang: SGLangAlone, temperature: float):
    for output in generated(sglang, 4, temperature=temperature):
        assert_logprobs(output, logits_of(output) / temperature)


def test_the_likeliest_tokens_and_their_logprobs_at_temperature_1(sglang: SGLangAlone):
    first, second = generated(sglang, 2, greedy=True, temperature=0.3)
    logits = logits_of(first)
    assert first.token_ids == second.token_ids == logits.argmax(-1).tolist()
    assert_logprobs(first, logits)


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 1}])
def test_logprobs_are_over_the_remaining_tokens(sglang: SGLangAlone, cut: dict[str, Any]):
    """Other requests run beside it, with and without such a limit."""

    async def both(engine: SGLangEngine) -> list[GenerateOutput]:
        plain = GenerateRequest("plain", PROMPT, 2, 1, {"max_new_tokens": 24})
        limited = GenerateRequest("cut", PROMPT, 4, 1, {"max_new_tokens": 24, "temperature": 0.8, **cut})
        return (await asyncio.gather(engine.generate(plain), engine.generate(limited)))[1]

    for output in sglang.ask(both):
        probabilities = (logits_of(output) / 0.8).softmax(-1)
        left = _left(probabilities, **cut)
        assert all(left[at, token] for at, token in enumerate(output.token_ids))
        assert_logprobs(output, probabilities.masked_fill(~left, 0).log())


def _left(chances: torch.Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    sorted_chances, order = chances.sort(-1, descending=True)
    before = sorted_chances.cumsum(-1) - sorted_chances
    keep = (before <= top_p) & (torch.arange(chances.shape[-1]) < (top_k or chances.shape[-1]))
    keep &= sorted_chances >= min_p * sorted_chances[:, :1]
    return torch.zeros_like(keep).scatter(-1, order, keep)


@pytest.mark.parametrize("penalty", [{"frequency_penalty": 1.2}, {"repetition_penalty": 1.6}])
def test_penalties_act_on_the_answer_and_on_its_logprobs(sglang: SGLangAlone, penalty: dict[str, float]):
    """SGLang's penalty of repetitions looks at the answer alone, not at the prompt."""
    (output,) = generated(sglang, 1, temperature=0.7, **penalty)
    logits = logits_of(output)
    for at in range(len(output.token_ids)):
        counts = torch.bincount(torch.tensor(output.token_ids[:at], dtype=torch.long), minlength=logits.shape[1])
        logits[at] -= penalty.get("frequency_penalty", 0.0) * counts
        factor = torch.where(counts > 0, penalty.get("repetition_penalty", 1.0), 1.0)
        logits[at] = torch.where(logits[at] > 0, logits[at] / factor, logits[at] * factor)
    assert len(set(output.token_ids)) > 1
    assert_logprobs(output, logits / 0.7)


def test_stops_end_an_answer_and_are_part_of_it(sglang: SGLangAlone):
    (free,) = generated(sglang, greedy=True, frequency_penalty=1.0)
    stop = free.token_ids[6]
    first = free.token_ids.index(stop)
    (by_id,) = generated(sglang, greedy=True, frequency_penalty=1.0, stop_token_ids=[stop])
    assert (by_id.token_ids, by_id.finish) == (free.token_ids[: first + 1], "stop")
    assert len(by_id.logprobs) == first + 1
    text = _letter(sglang, stop)
    (by_text,) = generated(sglang, greedy=True, frequency_penalty=1.0, stop=[text])
    assert (by_text.token_ids, by_text.finish) == (by_id.token_ids, "stop")


def _letter(sglang: SGLangAlone, token: int) -> str:
    vocabulary: dict[str, int] = json.loads((sglang.model / "tokenizer.json").read_text())["model"]["vocab"]
    return next(text for text, known in vocabulary.items() if known == token)


def test_an_answer_does_not_end_before_its_minimum_length(sglang: SGLangAlone):
    (free,) = generated(sglang, greedy=True)
    stop = free.token_ids[0]
    (late,) = generated(sglang, greedy=True, stop_token_ids=[stop], min_new_tokens=5)
    assert stop not in late.token_ids[:5]


@pytest.mark.parametrize("length", [500, 511])
def test_prompt_and_answer_can_fill_the_context_to_its_end(sglang: SGLangAlone, length: int):
    context = SHAPE["max_position_embeddings"]
    prompt = [5 + at % 40 for at in range(length)]
    wants = {"max_new_tokens": 50, "min_new_tokens": 50}
    (output,) = sglang.ask(lambda engine: engine.generate(GenerateRequest("a", prompt, 1, 1, wants)))
    assert (len(output.token_ids), output.finish) == (context - length, "length")
    ids = torch.tensor([prompt + output.token_ids])
    with torch.no_grad():
        logits = reference(0)(input_ids=ids).logits[0, length - 1 : -1].float()
    logits[:, EOS_ID] = -torch.inf  # until it is long enough
    assert_logprobs(output, logits)


def test_a_prompt_without_room_is_refused_and_affects_no_other_request(sglang: SGLangAlone):
    async def too_long(engine: SGLangEngine) -> None:
        await engine.generate(GenerateRequest("a", [5] * 512, 1, 0, {"max_new_tokens": 4}))

    with pytest.raises(ValueError, match=r"sglang\.context_length"):
        sglang.ask(too_long)
    assert len(generated(sglang)[0].token_ids) > 0


def test_aborted_requests_end_with_their_tokens_and_waiting_ones_with_none(sglang: SGLangAlone):
    async def interrupted(engine: SGLangEngine) -> list[GenerateOutput]:
        exact = {"max_new_tokens": 400, "min_new_tokens": 400}
        under_way = asyncio.create_task(
            engine.generate(GenerateRequest("many", PROMPT, 2 * AT_ONCE["sglang"], 1, exact))
        )
        while not (
            (results := await engine.statistics())["waiting"]
            and results["cached_tokens"] > 2 * len(PROMPT) * AT_ONCE["sglang"]
        ):
            await asyncio.sleep(0.02)
        await engine.abort(None)
        return await under_way

    outputs = sglang.ask(interrupted)
    assert {output.finish for output in outputs} == {"abort"}
    begun = [output for output in outputs if output.token_ids]
    assert 0 < len(begun) <= AT_ONCE["sglang"]
    for output in begun:
        assert len(output.logprobs) == len(output.token_ids)


def test_one_request_is_aborted_by_its_name_alone(sglang: SGLangAlone):
    async def interrupted(engine: SGLangEngine) -> list[list[GenerateOutput]]:
        wants = {"max_new_tokens": 60, "min_new_tokens": 60}
        requested = [GenerateRequest(name, PROMPT, 1, 1, wants) for name in ("g1", "g10", "g1-0")]
        under_way = [asyncio.create_task(engine.generate(one)) for one in requested]
        while (await engine.statistics())["running"] < 3:
            await asyncio.sleep(0.02)
        await engine.abort(["g1", "unknown"])
        return list(await asyncio.gather(*under_way))

    first, *others = sglang.ask(interrupted)
    assert first[0].finish == "abort"
    assert [len(outputs[0].token_ids) for outputs in others] == [60, 60]


def test_a_cancelled_call_leaves_no_running_request(sglang: SGLangAlone):
    async def given_up(engine: SGLangEngine) -> dict[str, Any]:
        wants = {"max_new_tokens": 450, "min_new_tokens": 450}
        under_way = asyncio.create_task(engine.generate(GenerateRequest("a", PROMPT, 2, 1, wants)))
        while (await engine.statistics())["running"] == 0:
            await asyncio.sleep(0.02)
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)
        await engine.abort(["a"])
        while (results := await engine.statistics())["running"]:
            await asyncio.sleep(0.02)
        return results

    assert sglang.ask(given_up)["waiting"] == 0


def test_an_idle_server_uses_no_core(sglang: SGLangAlone):
    sglang.ask(lambda engine: engine.statistics())
    pids = [sglang.live.pid(), *(seen.pid for seen in descendants_of(sglang.live.pid()))]

    def share() -> float:
        """Of a core, over a second: one that looks for work without end would take a whole one, for ever."""
        began, before = time.monotonic(), sum(map(cpu_s, pids))
        time.sleep(1.0)
        return (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)

    ends = time.monotonic() + 60
    while share() >= 0.3:
        assert time.monotonic() < ends, "it never became idle"


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_keep_is_refused_with_a_message(sglang: SGLangAlone):
    with pytest.raises(ValueError, match="abort or wait"):
        sglang.ask(lambda engine: engine.pause("keep"))
