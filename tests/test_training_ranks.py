"""Two trainer ranks are one: the same losses, gradients, metrics, weights and optimizer."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import training_ranks
from tests.training_runs import model_folder, world


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_two_ranks_equal_one(tmp_path):
    folder, port = model_folder(tmp_path, "qwen3"), str(free_port())
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training_ranks", str(folder), str(tmp_path / "two.json")]
    ranks = [
        subprocess.Popen(
            command, env={**shared, "RANK": rank}, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    training_ranks.run(folder, tmp_path / "one.json", world())
    errors = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)

    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    for kind in ("actor", "supervised"):
        for alone, together in zip(one[kind], two[kind], strict=True):
            assert together == pytest.approx(alone, rel=2e-5, abs=1e-6)
    weights = [load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=1e-5, rtol=1e-4, msg=name)
