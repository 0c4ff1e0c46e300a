"""The mended kernel of vLLM for adapters of the head, by a stand-in that fails at other rows as vLLM's does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.serving.engines.vllm.plugin.prompt_logits import pass_prompts_by_heads_without_adapter


class Wrapper(SimpleNamespace):
    def add_lora_logits(self, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        y += torch.einsum("bi,bo->bo", x, b[self.sampler_indices]) * scale


def test_rows_of_a_prompt_pass_a_head_without_an_adapter_alone() -> None:
    mended: Any = type("Mended", (Wrapper,), {})
    pass_prompts_by_heads_without_adapter(mended)
    wrapper = mended(sampler_indices=torch.tensor([0, 1, 0]))
    none, some = torch.zeros(2, 5), torch.ones(2, 5)
    prompt, running = torch.ones(7, 4), torch.ones(3, 4)
    logits = torch.zeros(7, 5)
    wrapper.add_lora_logits(logits, prompt, none, none, 1.0)
    assert not logits.any()
    with pytest.raises(RuntimeError, match="broadcast"):
        wrapper.add_lora_logits(logits, prompt, some, some, 1.0)
    logits = torch.zeros(3, 5)
    wrapper.add_lora_logits(logits, running, some, some, 1.0)
    assert (logits == 4).all()
