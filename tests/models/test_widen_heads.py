"""Wider attention heads compute the same."""

import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_like.models import model_folder
from areal_like.models.widen_heads import widen

FOLDER = model_folder("builtin:tiny-addition")


def test_wider_heads_compute_the_same(tmp_path):
    made = tmp_path / "wider"
    widen(FOLDER, made, 64)
    ids = torch.randint(2, 60, (8, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before, after = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)(ids).logits.log_softmax(-1)
            for folder in (FOLDER, made)
        )

    assert load_file(made / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].shape == (4 * 64, 96)
    assert torch.allclose(before, after, atol=1e-3)


def test_an_invalid_head_size_is_refused(tmp_path):
    words = [sys.executable, "-m", "areal_like.models.widen_heads", str(FOLDER), str(tmp_path / "new"), "31"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 2 and "31 must be an even number above 32" in done.stderr
    assert not (tmp_path / "new").exists()
