"""The options in `embedded` reach the engine; unsupported models are refused when they are loaded."""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.config.sections.engines.embedded import EmbeddedConfig
from areal_like.serving.engines.embedded.core.decode_graphs import CudaCapture
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.load_model import (
    bytes_per_token,
    captures_steps,
    load_engine,
    load_model,
)
from areal_like.serving.engines.embedded.weights.double_buffer import beside_generation
from areal_like.serving.requests import GroupRequest, Sampling
from tests.support.tiny_models import EOS_ID, tiny_qwen3, write_tiny_model

torch.set_num_threads(1)
GROUP = GroupRequest("g", (5, 9, 13), 4, 3, Sampling(max_new_tokens=8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def made(folder: Path, **options: Any) -> LLMEngine:
    return load_engine(EmbeddedConfig(**{"seed": 1, "device": "cpu", **options}), folder)


def test_a_model_generates_as_it_was_saved(folder: Path) -> None:
    engine = made(folder)
    assert engine.eos_token_ids == [EOS_ID]
    assert engine.context_length == 64
    assert engine.generate([GROUP])[0].samples == LLMEngine(tiny_qwen3()).generate([GROUP])[0].samples


def test_both_weight_buffers_are_aligned_so_that_they_give_the_same_bits(folder: Path) -> None:
    engine = made(folder)
    for _ in range(2):
        assert {tensor.data_ptr() % 64 for _, tensor in engine.weights.tensors()} == {0}
        engine.weights.stage({name: tensor.clone() for name, tensor in engine.weights.tensors()})
        engine.weights.swap()


def test_limits_are_read_from_the_configuration(folder: Path) -> None:
    threads = torch.get_num_threads()
    try:
        engine = made(folder, max_running_requests=3, context_length=20, kv_cache_tokens=100, threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (engine.max_running, engine.context_length, engine.cache.limit) == (3, 20, 96)
    engine.submit(GROUP)
    engine.step()
    assert engine.num_running == 3


def test_the_cache_allocates_memory_on_demand(folder: Path) -> None:
    engine = made(folder)
    assert engine.cache.limit > 1_000_000
    engine.generate([GROUP])
    assert engine.cache.rows * engine.cache.columns <= 4 * 16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_and_cache_have_the_configured_type(folder: Path, dtype: str) -> None:
    engine = made(folder, dtype=dtype)
    sample = engine.generate([GROUP])[0].samples[0]
    assert str(engine.dtype) == f"torch.{dtype}" == str(engine.cache.slots[0].keys.dtype)
    expected = engine.logprobs([*GROUP.prompt, *sample.token_ids])[len(GROUP.prompt) - 1 :]
    assert sample.logprobs == pytest.approx(expected, abs=1e-5 if dtype == "float32" else 0.1)
    model = load_model(folder, dtype, "cpu")
    assert bytes_per_token(model) == 2 * 2 * 2 * 8 * model.dtype.itemsize


def test_a_model_with_unsupported_layers_is_refused(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"^embedded.model_path: .* sliding_attention.* another rollout.backend"):
        made(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^embedded.device: .* set embedded.device=cpu"):
        made(folder, device="cuda")


class FakeCuda:
    """What a capture calls of torch.cuda. Each pool has a name of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.num_pools = 0
        self._signature = inspect.signature(torch.cuda.graph)
        calls = self.calls

        class Graph:
            def replay(self) -> None:
                calls.append("replay")

        monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self._new_pool)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", self._graph)

    def _new_pool(self) -> str:
        self.num_pools += 1
        return f"pool {self.num_pools}"

    @contextmanager
    def _graph(self, *given: Any, **named: Any) -> Iterator[None]:
        arguments = self._signature.bind(*given, **named).arguments
        assert (arguments["stream"], arguments["capture_error_mode"]) == ("a stream of cuda:0", "thread_local")
        self.calls.append(f"begin in {arguments['pool']}")
        yield
        self.calls.append("end")


def test_a_capture_calls_cuda_as_torch_defines_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    replay = CudaCapture(torch.device("cuda:0"))(lambda: cuda.calls.append("step"))
    replay()
    assert cuda.calls == ["begin in pool 1", "step", "end", "replay"]


def test_graphs_share_a_pool_until_all_of_them_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to capture into a pool that had graphs and has none."""
    cuda = FakeCuda(monkeypatch)
    capture = CudaCapture(torch.device("cuda:0"))
    replays = [capture(lambda: None) for _ in range(2)]
    del replays[0]
    replays.append(capture(lambda: None))
    replays.clear()
    replays.append(capture(lambda: None))
    pools = [call for call in cuda.calls if call.startswith("begin")]
    assert pools == ["begin in pool 1"] * 3 + ["begin in pool 2"]


def test_steps_are_captured_on_a_gpu_unless_forbidden() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")

    def captures(device: torch.device, **options: Any) -> bool:
        return captures_steps(EmbeddedConfig(**{"seed": 1, **options}), device)

    assert captures(cuda) and captures(cuda, enforce_eager=False)
    assert not captures(cuda, enforce_eager=True)
    assert not captures(cpu) and not captures(cpu, enforce_eager=False)


def test_work_beside_generation_waits_for_it_and_is_complete_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: the standby weights may still be read when they are overwritten."""
    calls: list[str] = []
    side = SimpleNamespace(
        wait_stream=lambda other: calls.append(f"wait for {other}"), synchronize=lambda: calls.append("complete")
    )

    @contextmanager
    def current(stream: Any) -> Iterator[None]:
        assert stream is side
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the engine's stream")
    monkeypatch.setattr(torch.cuda, "stream", current)
    with pytest.raises(ValueError), beside_generation(torch.device("cuda:7")):
        calls.append("copy")
        raise ValueError
    assert calls == ["wait for the engine's stream", "copy", "complete"]
    with beside_generation(torch.device("cpu")):
        pass
