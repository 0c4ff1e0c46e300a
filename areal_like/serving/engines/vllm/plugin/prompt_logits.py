"""Log-probabilities of a prompt on a CPU, in a vLLM with adapters. Its kernel for a head with an adapter takes one row
per running request, and fails at the rows of a prompt when several requests run: the worker ended. Without an adapter
of the head nothing is to be added, and the rows are left as they are."""

from typing import Any

from torch import Tensor


def pass_prompts_by_heads_without_adapter(wrapper: Any) -> None:
    """`wrapper`: vLLM's class that applies adapters on a CPU."""
    original = wrapper.add_lora_logits

    def add_lora_logits(self: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, *more: Any, **by_name: Any) -> Any:
        if x.view(-1, x.shape[-1]).size(0) != len(self.sampler_indices) and not b.any():
            return None
        return original(self, y, x, a, b, *more, **by_name)

    wrapper.add_lora_logits = add_lora_logits


def mend_prompt_logits() -> None:
    try:
        from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    except ImportError:  # another version of vLLM, whose kernels are elsewhere
        return
    pass_prompts_by_heads_without_adapter(PunicaWrapperCPU)
