"""SGLang's command line, token guard and requests, without SGLang."""

import asyncio
import json
import math
from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from areal_like.config.schema import Schema
from areal_like.config.sections.engines.sglang import SGLangConfig
from areal_like.process.identity import PORT, RUN_HEADER, TOKEN
from areal_like.serving.engines.base import EngineInfo, GenerateRequest
from areal_like.serving.engines.external.command_line import ServerCommand, ServerSite
from areal_like.serving.engines.sglang.checksums import checksum, compare, fused_tensors
from areal_like.serving.engines.sglang.command import RESERVED_TOKENS, UNGUARDED_FLAGS, sglang_command
from areal_like.serving.engines.sglang.requests import Capabilities, parse_output, request_body
from areal_like.serving.token_guard import RequireToken
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.hashes import hash_of
from tests.support.planning import BIG_MODEL, loaded, plan_of

FACTS = EngineInfo("sglang", "0.5.21", "/m", 512, 60, (1,))
CAPABILITIES = Capabilities(has_tokenizer=True, by_seed=False)


def started(
    on_gpu: bool = True, model: str = "some/model", words: tuple[str, ...] = (), **values: Any
) -> ServerCommand:
    """With values of SGLang's own section."""
    config = deepcopy(loaded("grpo", *BIG_MODEL, *words).config)
    for name, value in values.items():
        assert hasattr(config.sglang, name)
        setattr(config.sglang, name, value)
    return sglang_command(config, ServerSite(0, "10.0.0.1", 0, "/runs/x", model, on_gpu, 2, 1, (), "/env/bin/python"))


def value_of(start: ServerCommand, flag: str) -> str:
    return start.command[start.command.index(flag) + 1]


def keys(results: list[tuple[str, str]]) -> set[str]:
    return {key for key, _ in results}


def body(n: int = 1, seed: int = 7, capabilities: Capabilities = CAPABILITIES, **sampling: Any) -> dict[str, Any]:
    names = [f"a#{number}#" for number in range(n)]
    return request_body(
        GenerateRequest("a", [5, 9, 13], n, seed, {"max_new_tokens": 8, **sampling}), names, FACTS, capabilities
    )


def test_sglang_listens_on_loopback_behind_the_token_guard():
    start = started()
    assert start.command[:3] == ["/env/bin/python", "-m", "areal_like.serving.engines.sglang.plugin.launch"]
    assert (value_of(start, "--host"), value_of(start, "--port")) == ("127.0.0.1", PORT)
    assert "--skip-server-warmup" in start.command
    assert start.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"


OTHERWISE: dict[str, Any] = {
    "python": "/other/bin/python",
    "extra_args": {"page_size": 16},
    "cuda_graph_bs": [1, 2],
    "lora_paths": ["/a"],
    "lora_target_modules": ["q_proj"],
    "enable_lora": True,
    "mem_fraction_static": 0.5,
}
"""What else a key could be, where it is neither a switch nor a number or a word."""


@pytest.mark.parametrize("name", [key.name for key in fields(SGLangConfig) if key.name != "model_path"])
def test_every_key_of_the_section_is_passed_translated_or_listed(name):
    """But for the model's path, which is the actor's."""
    now = getattr(loaded("grpo", *BIG_MODEL).config.sglang, name)
    word = "other" if isinstance(now, str) or name in ("attention_backend", "sampling_backend", "log_level_http") else 7
    plain, start = started(), started(**{name: OTHERWISE.get(name, not now if isinstance(now, bool) else word)})
    changed = (start.command, start.env) != (plain.command, plain.env)
    is_refused = bool(Schema.of(SGLangConfig).keys[name].constraints.rules)
    assert changed or start.without_effect or is_refused or f"sglang.{name}" in keys(start.problems)


def test_true_defaults_can_be_set_to_false():
    plain, turned = started(disable_radix_cache=True), started(disable_radix_cache=False, enable_metrics=False)
    for flag in ("--disable-radix-cache", "--enable-metrics"):
        assert flag in plain.command and flag not in turned.command


def test_kernels_for_a_gpu_are_refused_on_a_cpu():
    start = started(on_gpu=False, attention_backend="fa3", sampling_backend="flashinfer")
    assert keys(start.problems) == {"sglang.attention_backend", "sglang.sampling_backend"}
    assert not started(attention_backend="fa3").problems
    assert not started(on_gpu=False, attention_backend="intel_amx").problems


def test_on_a_gpu_a_group_shares_its_prompt_and_priorities_stay():
    plan = plan_of("grpo", "rollout=sglang", *BIG_MODEL, gpus=2)
    there = {resolved.key: resolved for resolved in plan.auto}
    assert there["sglang.disable_radix_cache"].value is False
    assert there["sglang.disable_radix_cache"].reason.startswith("on a GPU")
    assert there["sglang.schedule_policy"].value == "fcfs"
    assert "--disable-radix-cache" not in started().command
    assert "--enable-priority-scheduling" in started().command
    assert "--disable-radix-cache" in started(on_gpu=False).command


def test_the_flag_of_a_lora_backend_is_the_one_that_runs_on_a_cpu():
    assert value_of(started(on_gpu=False), "--lora-backend") == "torch_native"
    assert value_of(started(), "--lora-backend") == "triton"
    assert value_of(started(on_gpu=False, lora_backend="csgmv"), "--lora-backend") == "csgmv"


def test_an_adapter_can_be_loaded_beside_the_served_one():
    start = started(words=("actor.use_lora=true", "actor.weight_update_mode=adapter"))
    assert (value_of(start, "--max-loaded-loras"), value_of(start, "--max-loras-per-batch")) == ("2", "2")
    assert keys(start.notes) >= {"sglang.max_loaded_loras", "sglang.max_loras_per_batch"}
    more = started(words=("actor.use_lora=true",), max_loaded_loras=5)
    assert value_of(more, "--max-loaded-loras") == "5"
    assert value_of(started(), "--max-loaded-loras") == "1"


@pytest.mark.parametrize(("modules", "is_fit"), [("[q_proj]", False), ("[q_proj,v_proj]", True), ("[o_proj]", True)])
def test_adapters_that_sglang_cannot_load_are_refused_before_the_start(modules, is_fit):
    words = ("actor.use_lora=true", "actor.weight_update_mode=adapter", f"actor.target_modules={modules}")
    assert ("actor.target_modules" not in keys(started(words=words).problems)) is is_fit


def test_requests_have_priorities_if_the_policy_supports_them():
    start = started()
    assert value_of(start, "--schedule-policy") == "fcfs"
    assert "--enable-priority-scheduling" in start.command
    assert value_of(started(schedule_policy="lpm", disable_radix_cache=True), "--schedule-policy") == "fcfs"
    cached = started(schedule_policy="lpm", disable_radix_cache=False)
    assert value_of(cached, "--schedule-policy") == "lpm"
    assert "--enable-priority-scheduling" not in cached.command


def test_a_context_longer_than_the_models_is_cut_with_a_note(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    start = started(model=str(tmp_path))
    assert value_of(start, "--context-length") == str(512 + RESERVED_TOKENS)
    assert "sglang.context_length" in keys(start.notes)
    for less, places in ((100, 100), (None, 512)):
        start = started(model=str(tmp_path), context_length=less)
        assert value_of(start, "--context-length") == str(places + RESERVED_TOKENS) and not start.notes
    assert value_of(started(context_length=100), "--context-length") == "100"


def test_a_configured_seed_acts_on_a_gpu_and_is_refused_on_a_cpu():
    on_gpu = started(words=("gconfig.seed=3",))
    assert "--enable-deterministic-inference" in on_gpu.command and not on_gpu.problems
    assert "--enable-deterministic-inference" not in started().command
    (refusal,) = started(on_gpu=False, words=("gconfig.seed=3",)).problems
    assert refusal[0] == "gconfig.seed" and "rollout=embedded" in refusal[1]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("gconfig.seed=3", "gconfig.min_p=0.1"), "gconfig.min_p"),
        (("gconfig.repetition_penalty=3",), "gconfig.repetition_penalty"),
        (("gconfig.stop=[a]", "gconfig.min_new_tokens=3"), "gconfig.stop"),
        (("gconfig.stop=[a]", "sglang.skip_tokenizer_init=true"), "gconfig.stop"),
        (("gconfig.min_new_tokens=3", "sglang.skip_tokenizer_init=true"), "gconfig.min_new_tokens"),
    ],
)
def test_sampling_that_sglang_does_differently_is_refused(words, key):
    assert key in keys(started(words=words).problems)


@pytest.mark.parametrize("name", sorted(UNGUARDED_FLAGS))
def test_flags_that_open_an_unguarded_port_are_refused(name):
    start = started(extra_args={name: 2})
    assert keys(start.problems) == {f"sglang.extra_args.{name}"}
    assert "--" + name.replace("_", "-") not in start.command


@pytest.mark.parametrize("name", ["disagg", "disaggregation-mode", "--grpc-po", "engine_info_boot", "grpc_port=1"])
def test_other_spellings_of_these_flags_are_refused(name):
    start = started(extra_args={name: 2})
    assert keys(start.problems) == {f"sglang.extra_args.{name}"}
    assert not [word for word in start.command if word.startswith(f"--{name.strip('-')[:6].replace('_', '-')}")]


def test_each_sample_has_its_own_seed_and_name():
    answer = body(n=3)
    assert [how["sampling_seed"] for how in answer["sampling_params"]] == [7, 8, 9]
    assert answer["rid"] == ["a#0#", "a#1#", "a#2#"]
    assert answer["input_ids"] == [[5, 9, 13]] * 3


def test_logprobs_over_the_remaining_tokens_are_requested_with_truncation():
    assert not body()["return_sampling_mask"]
    cut = body(top_p=0.5)
    assert cut["return_sampling_mask"] and cut["sampling_params"][0]["top_k"] == FACTS.vocab_size
    assert body(top_k=5)["sampling_params"][0]["top_k"] == 5
    assert not body(top_k=60)["return_sampling_mask"]
    assert not body(top_p=0.5, greedy=True)["return_sampling_mask"]


def test_an_answer_ends_at_the_models_end_tokens_and_within_the_context():
    how = body(stop_token_ids=[9], max_new_tokens=10_000)["sampling_params"][0]
    assert how["stop_token_ids"] == [1, 9]
    assert how["max_new_tokens"] == FACTS.context_length - 3
    with pytest.raises(ValueError, match=r"sglang\.context_length"):
        request_body(GenerateRequest("a", [5] * 512, 1, 0, {"max_new_tokens": 8}), ["a"], FACTS, CAPABILITIES)


def test_unsupported_sampling_of_a_request_is_refused_by_key():
    with pytest.raises(ValueError, match=r"^gconfig\.min_p: SGLang crashes"):
        body(capabilities=Capabilities(True, by_seed=True), min_p=0.2)
    with pytest.raises(ValueError, match=r"^gconfig\.beams"):
        body(beams=3)


def test_an_answer_aborted_before_its_start_is_empty():
    response = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}}}
    assert parse_output(response, truncated=False) == ([], [], "abort", None)


SHAPES = {
    "model.embed_tokens.weight": (60, 4),
    **{f"model.layers.0.self_attn.{part}_proj.weight": (8, 4) for part in "qkv"},
    "model.norm.weight": (4,),
}
CONTENTS = {name: np.full(4 * math.prod(shape), at, np.uint8) for at, (name, shape) in enumerate(SHAPES.items(), 1)}
INFOS = [
    TensorInfo(name, "float32", shape, hash_of("float32", shape, CONTENTS[name].data)) for name, shape in SHAPES.items()
]


def served(contents: dict[str, Any], rows: int = 60) -> dict[str, str]:
    """As SGLang says it: fused, filled up, and hashed."""
    embedding = contents["model.embed_tokens.weight"].tobytes() + bytes((rows - 60) * 16)
    fused = b"".join(contents[f"model.layers.0.self_attn.{part}_proj.weight"].tobytes() for part in "qkv")
    held_there = {
        "model.embed_tokens.weight": ((rows, 4), embedding),
        "model.layers.0.self_attn.qkv_proj.weight": ((24, 4), fused),
        "model.norm.weight": ((4,), contents["model.norm.weight"].tobytes()),
    }
    return {name: checksum("float32", shape, content) for name, (shape, content) in held_there.items()}


@pytest.mark.parametrize("rows", [60, 64])
def test_fused_and_padded_tensors_are_verified(rows):
    results = compare(fused_tensors(INFOS, CONTENTS), [served(CONTENTS, rows)], INFOS)
    assert results.hashes == {info.name: info.hash for info in INFOS}
    assert not results.wrong and not results.uncovered


def test_a_tensor_that_differs_is_named():
    damaged = deepcopy(CONTENTS)
    damaged["model.layers.0.self_attn.k_proj.weight"][3] ^= 1
    results = compare(fused_tensors(INFOS, CONTENTS), [served(damaged)], INFOS)
    assert set(results.wrong) == {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"}
    assert "qkv_proj" in results.wrong["model.layers.0.self_attn.k_proj.weight"]


def test_tensors_split_over_ranks_are_uncovered_and_never_wrong():
    whole = served(CONTENTS)
    parts = [{**whole, "model.layers.0.self_attn.qkv_proj.weight": rank} for rank in ("a", "b")]
    results = compare(fused_tensors(INFOS, CONTENTS), parts, INFOS)
    assert not results.wrong
    assert results.uncovered == [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]


def test_the_token_guard_refuses_calls_without_the_token(monkeypatch):
    monkeypatch.setenv(TOKEN, "secret")
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def status(path: str, answer: str | None = None, method: str = "GET", kind: str = "http") -> Any:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        headers = [] if answer is None else [(b"authorization", answer.encode())]
        scope = {"type": kind, "method": method, "path": path, "headers": headers}
        asyncio.run(RequireToken(app)(scope, receive, send))
        if kind == "http":
            assert RUN_HEADER.lower().encode() in dict(sent[0]["headers"])
        return sent[0].get("status", sent[0]["type"])

    assert status("/generate", method="POST") == 401
    assert status("/generate", "Bearer wrong", "POST") == 401
    assert status("/health", method="POST") == 401
    assert status("/health_generate") == 401
    assert status("/v1/realtime", kind="websocket") == "websocket.close"
    assert passed == []
    assert [status("/health"), status("/ping"), status("/x", "Bearer secret")] == [200, 200, 200]
