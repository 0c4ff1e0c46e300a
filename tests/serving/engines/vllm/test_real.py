"""A real vLLM: sampling, weight updates and refusals."""

import asyncio
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from transformers import PreTrainedModel

from areal_like.process.identity import RUN_HEADER
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.engines.base import GenerateOutput, WeightUpdate
from areal_like.serving.engines.external.external_engine import IncompatibleEngine
from areal_like.serving.engines.vllm.engine import VLLMEngine
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.errors import BadWeights
from areal_like.weights.rendezvous import Rendezvous
from tests.support.engine_environments import only_on
from tests.support.engines import AT_ONCE, SECRET, SHAPE, LiveServer
from tests.support.tiny_models import EOS_ID, tiny_qwen3
from tests.support.vllm_servers import (
    VLLMAlone,
    apart,
    asked,
    log_softmax,
    logprobs_of,
    run_with_engine,
    update,
)

pytestmark = only_on("vllm")
PROMPT = [5, 9, 13, 20, 7]
CLOSE = 1e-4
VLLM_LOADS = "Reloading weights inplace"


@pytest.fixture
def server(server: LiveServer) -> VLLMAlone:
    """The vLLM of the server, asked without it."""
    return VLLMAlone(server)


def model(seed: int) -> PreTrainedModel:
    return tiny_qwen3(seed, **SHAPE)


def published(server: VLLMAlone, weights: PreTrainedModel) -> WeightUpdate:
    return server.arrival(weights, server.live.next_version())


async def serve(engine: VLLMEngine, server: VLLMAlone, seed: int = 0) -> PreTrainedModel:
    weights = model(seed)
    await update(engine, published(server, weights))
    return weights


def at(
    output: GenerateOutput, weights: PreTrainedModel, prompt: list[int] = PROMPT, temperature: float = 1.0
) -> torch.Tensor:
    """The model's log-probabilities of the whole vocabulary where each token was chosen."""
    return log_softmax(weights, [*prompt, *output.token_ids], temperature)[len(prompt) - 1 :]


def test_every_route_but_health_and_ping_needs_the_token(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        routes = (await engine.calls.get("/openapi.json"))["paths"]
        called = [(verb, path) for path, verbs in routes.items() for verb in verbs]
        assert ("post", "/collective_rpc") in called and ("post", "/inference/v1/generate") in called
        called += [("get", path) for path in ("/metrics", "/openapi.json", "/docs", "/nothing", "/health/", "//health")]
        proof_response = await request_proof(server.address)
        ProofVerifier(SECRET, proof_response.start_id).check(proof_response)
        wrong = {"Authorization": "Bearer another"}
        async with aiohttp.ClientSession() as session:
            for headers in ({}, wrong):
                for verb, path in called:
                    url = f"http://{server.address}{path}"
                    async with session.request(verb, url, headers=headers, json={}, allow_redirects=False) as answer:
                        is_open = (verb, path) in (("get", "/health"), ("get", "/ping"))
                        assert answer.status == (200 if is_open else 401), (verb, path)
                        assert answer.headers[RUN_HEADER]
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await session.ws_connect(f"http://{server.address}/v1/realtime")

    run_with_engine(server, test)


def test_a_server_with_another_token_is_of_another_run(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        facts = await engine.ready()
        assert (facts.engine, facts.context_length, facts.vocab_size, facts.processes) == ("vllm", 512, 60, 1)
        assert facts.eos_token_ids == (EOS_ID,)
        stranger = VLLMEngine(server.address, "another", server.config, server.live.model_folder)
        with pytest.raises(IncompatibleEngine, match="not of this run"):
            await stranger.ready()
        await stranger.close()

    run_with_engine(server, test)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_of_the_distribution_that_was_sampled_from(server, temperature):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        weights = await serve(engine, server)
        outputs = await engine.generate(asked("t", PROMPT, n=4, temperature=temperature, max_new_tokens=64))
        for output in outputs:
            expected = logprobs_of(weights, [*PROMPT, *output.token_ids], temperature)[len(PROMPT) - 1 :]
            assert (expected - torch.tensor(output.logprobs)).abs().max() < CLOSE

    run_with_engine(server, test)


def test_answers_of_a_group_differ_and_repeat_with_their_seed(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        first, again, other = [
            [output.token_ids for output in await engine.generate(asked(f"s{number}", PROMPT, n=4, seed=seed))]
            for number, seed in enumerate((7, 7, 1 << 62))
        ]
        assert first == again != other
        assert len({tuple(answer) for answer in first}) == 4

    run_with_engine(server, test)


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"greedy": True, "temperature": 0.7, "top_k": 3}])
def test_greedy_takes_the_likeliest_for_all_of_a_group(server, greedy):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        weights = await serve(engine, server)
        first, second = await engine.generate(asked("g", PROMPT, n=2, **greedy))
        assert first == second
        assert first.token_ids == at(first, weights).argmax(-1).tolist()
        assert apart(first, PROMPT, weights) < CLOSE

    run_with_engine(server, test)


@pytest.mark.parametrize("limit", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}])
def test_unlikely_tokens_are_excluded_and_the_others_renormalized(server, limit):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        weights = await serve(engine, server)
        for output in await engine.generate(asked("l", PROMPT, n=8, max_new_tokens=24, **limit)):
            for token, logprob, all_of_them in zip(output.token_ids, output.logprobs, at(output, weights), strict=True):
                kept = _kept(all_of_them.exp(), **limit)
                assert token in kept
                assert abs(all_of_them[token] - all_of_them[kept].logsumexp(0) - logprob) < CLOSE

    run_with_engine(server, test)


def _kept(chances: torch.Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    order = chances.argsort(descending=True)
    before = chances[order].cumsum(0) - chances[order]
    keep = (before < top_p) & (chances[order] >= min_p * chances.max())
    return [int(token) for token in (order[keep][:top_k] if top_k else order[keep])]


@pytest.mark.parametrize("penalty", [{"frequency_penalty": 1.5}, {"repetition_penalty": 1.8}])
def test_penalties_change_what_is_sampled_from(server, penalty):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        weights = await serve(engine, server)
        (output,) = await engine.generate(asked("p", PROMPT, max_new_tokens=48, **penalty))
        with torch.no_grad():
            logits_TV = weights(input_ids=torch.tensor([[*PROMPT, *output.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
        for count, logits in enumerate(logits_TV):
            penalized = _penalized(logits, PROMPT, output.token_ids[:count], **penalty)
            expected = penalized.log_softmax(-1)[output.token_ids[count]]
            assert abs(expected - output.logprobs[count]) < CLOSE

    run_with_engine(server, test)


def _penalized(
    logits: torch.Tensor,
    prompt: list[int],
    answer: list[int],
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> torch.Tensor:
    counts = torch.bincount(torch.tensor(answer, dtype=torch.long), minlength=len(logits))
    seen = torch.zeros(len(logits), dtype=torch.bool).index_fill(0, torch.tensor([*prompt, *answer]), True)
    changed = torch.where(logits > 0, logits / repetition_penalty, logits * repetition_penalty)
    return torch.where(seen, changed, logits) - frequency_penalty * counts


def test_an_answer_does_not_end_before_its_least_length(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        for output in await engine.generate(asked("m", PROMPT, n=8, max_new_tokens=300, min_new_tokens=40)):
            assert EOS_ID not in output.token_ids[:40]
            assert len(output.token_ids) >= 40

    run_with_engine(server, test)


def test_a_stop_token_is_part_of_the_answer(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        stops = list(range(20, 60))
        for output in await engine.generate(asked("e", PROMPT, n=8, max_new_tokens=100, stop_token_ids=stops)):
            assert output.finish == "stop"
            assert output.token_ids[-1] in (*stops, EOS_ID)
            assert not {*stops, EOS_ID} & {*output.token_ids[:-1]}
            assert len(output.logprobs) == len(output.token_ids)

    run_with_engine(server, test)


def test_a_stop_text_ends_the_answer_with_the_token_that_completes_it(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        from tokenizers import Tokenizer

        await serve(engine, server)
        tokenizer = Tokenizer.from_file(str(server.live.model_folder / "tokenizer.json"))
        (free,) = await engine.generate(asked("w", PROMPT, seed=5, max_new_tokens=40))
        text = tokenizer.decode(free.token_ids[8:10], skip_special_tokens=False)
        (stopped,) = await engine.generate(asked("w2", PROMPT, seed=5, max_new_tokens=40, stop=[text, "never\n\n"]))
        assert stopped.finish == "stop"
        assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
        assert text in tokenizer.decode(stopped.token_ids, skip_special_tokens=False)
        assert text not in tokenizer.decode(stopped.token_ids[:-1], skip_special_tokens=False)

    run_with_engine(server, test)


def test_an_answer_reaches_its_limit_and_a_prompt_without_room_is_refused(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        for limits, required in (
            ({"max_new_tokens": 9}, 9),
            ({"max_new_tokens": 90, "max_tokens": 12}, 7),
            ({"max_new_tokens": 600, "min_new_tokens": 600}, 507),
        ):
            (output,) = await engine.generate(asked("n", PROMPT, seed=1, **{"min_new_tokens": 600, **limits}))
            assert (len(output.token_ids), output.finish) == (required, "length")
        with pytest.raises(ValueError, match=r"vllm\.max_model_len: the prompt has 512 tokens"):
            await engine.generate(asked("n", [5] * 512))
        with pytest.raises(ValueError, match="out of vocabulary"):
            await engine.generate(asked("n", [5, 60]))
        with pytest.raises(ValueError, match=r"gconfig\.temperature"):
            await engine.generate(asked("n", PROMPT, temperature=0.001))
        assert len(await engine.generate(asked("n", PROMPT))) == 1

    run_with_engine(server, test)


def test_many_long_seeded_prompts_do_not_crash_vllm(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        prompts = [[5 + (number + place) % 50 for place in range(400)] for number in range(64)]
        results = await asyncio.gather(
            *(engine.generate(asked(f"many{number}", prompt, seed=number)) for number, prompt in enumerate(prompts))
        )
        assert [len(outputs) for outputs in results] == [1] * 64

    run_with_engine(server, test)


def test_an_abort_ends_the_named_requests_with_their_tokens(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        long: dict[str, Any] = {"max_new_tokens": 400, "stop_token_ids": [], "min_new_tokens": 400}

        async def aborted(name: str, ids: list[str] | None) -> list[GenerateOutput]:
            """On a busy machine all may have ended before the abort; then it is repeated."""
            while True:
                asking = asyncio.create_task(engine.generate(asked(name, PROMPT, n=3, **long)))
                while not asking.done() and (await engine.statistics())["running"] < 3:
                    await asyncio.sleep(0.005)
                await engine.abort(ids)
                results = await asking
                if any(output.finish == "abort" for output in results):
                    return results

        other = asyncio.create_task(engine.generate(asked("stays", PROMPT, **long)))
        for output in await aborted("gone", ["nobody", "gone"]):
            assert output.finish == "abort" and len(output.token_ids) < 400
            assert len(output.logprobs) == len(output.versions or []) == len(output.token_ids)
        assert len((await other)[0].token_ids) == 400
        assert [output.finish for output in await aborted("all", None)] == ["abort"] * 3
        await engine.pause("keep")
        never = asyncio.create_task(engine.generate(asked("never", PROMPT, n=2)))
        while not never.done():  # an abort that comes before the request ends nothing
            await engine.abort(["never"])
            await asyncio.wait([never], timeout=0.2)
        assert [(output.token_ids, output.finish) for output in await never] == [([], "abort")] * 2
        await engine.resume()

    run_with_engine(server, test)


async def _until_running(engine: VLLMEngine, count: int) -> None:
    ends = time.monotonic() + 300
    while (await engine.statistics())["running"] < count:
        assert time.monotonic() < ends, "they did not begin"
        await asyncio.sleep(0.02)


def test_a_request_of_a_lower_number_goes_first(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server)
        order: list[str] = []

        async def ask(name: str, priority: int) -> None:
            await engine.generate(asked(name, PROMPT, max_new_tokens=30, min_new_tokens=30)._replace(priority=priority))
            order.append(name)

        await engine.pause("keep")
        late = [asyncio.create_task(ask(f"late{number}", 5)) for number in range(2 * AT_ONCE["vllm"])]
        await asyncio.sleep(0.5)
        first = asyncio.create_task(ask("first", -5))
        await asyncio.sleep(0.3)
        await engine.resume()
        await asyncio.gather(first, *late)
        assert order.index("first") <= AT_ONCE["vllm"]

    run_with_engine(server, test)


def test_new_weights_are_used_and_every_tensor_can_be_read_back(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        for seed in (1, 2):
            weights = model(seed)
            arrival = published(server, weights)
            await update(engine, arrival)
            results = await engine.verify(arrival.index.tensors, arrival.folder)
            assert not results.wrong and not results.uncovered
            assert results.hashes == {info.name: info.hash for info in arrival.index.tensors}
            expected = logprobs_of(weights, PROMPT)
            assert (torch.tensor(await engine.logprobs(PROMPT)) - expected).abs().max() < CLOSE
            (output,) = await engine.generate(asked("u", PROMPT))
            assert apart(output, PROMPT, weights) < CLOSE
            assert output.versions == [arrival.version] * len(output.token_ids)

    run_with_engine(server, test)


def test_weights_that_cannot_be_packed_in_advance_are_loaded_by_vllm(server):
    """vLLM reports its own load, which takes place while nothing is generated."""
    rounded = model(3).bfloat16()

    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server, 1)
        before = server.live.whole_log().count(VLLM_LOADS)
        await update(engine, published(server, rounded))
        assert server.live.whole_log().count(VLLM_LOADS) > before
        weights = rounded.float()
        assert (torch.tensor(await engine.logprobs(PROMPT)) - logprobs_of(weights, PROMPT)).abs().max() < CLOSE
        weights = await serve(engine, server, 2)
        assert (torch.tensor(await engine.logprobs(PROMPT)) - logprobs_of(weights, PROMPT)).abs().max() < CLOSE

    run_with_engine(server, test)


def test_many_updates_are_read_back_while_tokens_are_generated(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        long: dict[str, Any] = {"max_new_tokens": 450, "min_new_tokens": 450}
        running = [
            asyncio.create_task(engine.generate(asked(f"r{number}", PROMPT, seed=number, **long)))
            for number in range(24)
        ]
        for turn in range(10):
            arrival = published(server, model(turn % 3))
            await update(engine, arrival)
            results = await engine.verify(arrival.index.tensors, arrival.folder)
            assert not results.wrong and not results.uncovered
        for outputs in await asyncio.gather(*running):
            assert [(len(output.token_ids), output.finish) for output in outputs] == [(450, "length")]

    run_with_engine(server, test)


def test_verification_names_tensors_that_differ(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server, 1)
        other = model(1)
        with torch.no_grad():
            other.model.layers[1].self_attn.v_proj.weight[3, 5] += 1e-3
            other.model.embed_tokens.weight[7, 0] += 1e-3
        results = await engine.verify(published(server, other).index.tensors, None)
        assert {*results.wrong} == {"model.layers.1.self_attn.v_proj.weight", "model.embed_tokens.weight"}

    run_with_engine(server, test)


def test_a_tensor_with_a_negative_zero_is_not_wrong(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        weights = model(1)
        name = "model.layers.0.mlp.down_proj.weight"
        with torch.no_grad():
            weights.model.layers[0].mlp.down_proj.weight[0, :4] = -0.0
        arrival = published(server, weights)
        await update(engine, arrival)
        for _ in range(2):
            results = await engine.verify(arrival.index.tensors, arrival.folder)
            assert not results.wrong
            assert results.uncovered in ([name], [])

    run_with_engine(server, test)


def test_kept_requests_continue_as_if_the_new_weights_had_computed_their_cache(server):
    """Keys and values of earlier tokens are computed again."""

    async def num_crossed(engine: VLLMEngine, server: VLLMAlone) -> int:
        old = await serve(engine, server, 0)
        new = model(3)
        arrival = published(server, new)
        await engine.stage(arrival)
        sampling = {"max_new_tokens": 480, "temperature": 1.0}
        prompts = [[5 + (place * step) % 50 for place in range(20)] for step in range(1, 9)]
        running = [
            asyncio.create_task(engine.generate(asked(f"k{seed}", prompt, n=8, seed=seed, **sampling)))
            for seed, prompt in enumerate(prompts)
        ]
        before = (await engine.statistics())["generated_tokens"]
        await _until_running(engine, 8)
        while (await engine.statistics())["generated_tokens"] < before + 16:
            await asyncio.sleep(0.005)
        await engine.pause("keep")
        await engine.commit(arrival)
        await engine.resume()
        crossed = 0
        for prompt, outputs in zip(prompts, await asyncio.gather(*running), strict=True):
            for output in outputs:
                versions = output.versions or []
                assert sorted(versions) == versions and {*versions} <= {arrival.version - 1, arrival.version}
                cut = versions.index(arrival.version) if arrival.version in versions else len(versions)
                if cut:
                    assert apart(output, prompt, old, 0, cut) < CLOSE
                if 0 < cut < len(versions):
                    crossed += 1
                    assert apart(output, prompt, new, cut) < CLOSE < apart(output, prompt, old, cut)
        return crossed

    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        for _ in range(10):  # on a busy machine the answers may end before the pause
            if await num_crossed(engine, server):
                return
        pytest.fail("no answer was generated by two versions")

    run_with_engine(server, test)


def test_a_cached_prompt_is_computed_again_after_an_update(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        prompt = [5 + place % 50 for place in range(200)]
        for seed in (1, 2):
            weights = await serve(engine, server, seed)
            for name in ("first", "cached"):
                (output,) = await engine.generate(asked(name, prompt))
                assert apart(output, prompt, weights) < CLOSE

    run_with_engine(server, test)


def test_damaged_weights_are_refused_by_name_and_the_old_ones_stay_live(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        weights = await serve(engine, server, 1)
        arrival = published(server, model(2))
        assert arrival.folder is not None
        path = next(arrival.folder.glob("bucket-*"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(BadWeights, match=r"tensor model\.\S+ .*is corrupted"):
            await engine.stage(arrival)
        with pytest.raises(BadWeights, match="is not staged"):
            await engine.commit(arrival)
        path.unlink()
        with pytest.raises(BadWeights, match="is missing"):
            await engine.stage(arrival)
        await engine.stage(published(server, model(3)))
        await engine.discard()
        with pytest.raises(BadWeights, match="is not staged"):
            await engine.commit(dataclasses.replace(arrival, version=arrival.version + 1))
        (output,) = await engine.generate(asked("after", PROMPT))
        assert apart(output, PROMPT, weights) < CLOSE

    run_with_engine(server, test)


def test_weights_arrive_without_files_while_tokens_are_generated(server):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        await serve(engine, server, 0)
        new = model(2)
        arrival = published(server, new)
        assert arrival.folder is not None
        host = BroadcastHost("127.0.0.1", 0)
        rendezvous = Rendezvous("127.0.0.1", host.port, "g", "gloo", 1, 2, 60.0)
        sender = threading.Thread(target=_send, args=(host, rendezvous, arrival))
        sender.start()
        running = asyncio.create_task(engine.generate(asked("during", PROMPT, max_new_tokens=300)))
        sent = dataclasses.replace(arrival, folder=None, rendezvous=rendezvous)
        await engine.stage(sent)
        sender.join()
        host.close()
        await running
        await update_staged(engine, sent)
        results = await engine.verify(arrival.index.tensors, None)
        assert not results.wrong and not results.uncovered
        assert (torch.tensor(await engine.logprobs(PROMPT)) - logprobs_of(new, PROMPT)).abs().max() < CLOSE

    run_with_engine(server, test)


async def update_staged(engine: VLLMEngine, arrival: WeightUpdate) -> None:
    await engine.pause("keep")
    await engine.commit(arrival)
    await engine.resume()


def _send(host: BroadcastHost, rendezvous: Rendezvous, arrival: WeightUpdate) -> None:
    with host.open(rendezvous) as group:
        group.join()
        for bucket in arrival.index.buckets:
            assert arrival.folder is not None
            content = (arrival.folder / bucket.file).read_bytes()
            header = 8 + int.from_bytes(content[:8], "little")
            group.send(torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8))


def test_adapters_serve_under_their_names_beside_the_model(server, tmp_path):
    async def test(engine: VLLMEngine, server: VLLMAlone) -> None:
        base = await serve(engine, server, 1)
        adapted = {}
        for number in (1, 2):
            adapted[f"v{number}"] = _adapter(tmp_path / f"v{number}", number)
            await engine.load_adapter(f"v{number}", tmp_path / f"v{number}")
        for name, weights in adapted.items():
            expected = logprobs_of(weights, PROMPT)
            assert (torch.tensor(await engine.logprobs(PROMPT, name)) - expected).abs().max() < CLOSE
            (output,) = await engine.generate(asked("a", PROMPT)._replace(adapter=name))
            assert apart(output, PROMPT, weights) < CLOSE and output.versions is None
        (output,) = await engine.generate(asked("b", PROMPT))
        assert apart(output, PROMPT, base) < CLOSE
        await engine.unload_adapter("v1")
        with pytest.raises(ValueError, match="v1"):
            await engine.generate(asked("c", PROMPT)._replace(adapter="v1"))
        with pytest.raises(ValueError, match="v9 failed"):
            await engine.load_adapter("v9", tmp_path / "nowhere")
        await engine.unload_adapter("v2")

    run_with_engine(server, test)


def _adapter(folder: Path, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    adapted = get_peft_model(model(1), config).eval()
    adapted.save_pretrained(str(folder))
    return adapted
