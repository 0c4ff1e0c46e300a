"""Of a mapped tensor vLLM's own loaders read what the worker's shard needs."""

import json
import subprocess

import pytest

from tests.support.vllm_servers import python

SCRIPT = """
import json, sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor import parameter
from vllm.model_executor.layers import linear, vocab_parallel_embedding as vocabulary

class Reads(TorchDispatchMode):
    def __init__(self, whole):
        super().__init__()
        self.address, self.num_bytes = whole.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if not function.is_view:
            self.num_bytes += sum(each.nbytes for each in tensors if each.untyped_storage().data_ptr() == self.address)
        return function(*args, **(kwargs or {}))

for module in (parameter, linear, vocabulary):
    module.get_tensor_model_parallel_rank = lambda: int(sys.argv[1])
    module.get_tensor_model_parallel_world_size = lambda: 2
with set_current_vllm_config(VllmConfig()):
    places = [
        (linear.ColumnParallelLinear(64, 128, bias=False), {(): (128, 64)}),
        (linear.RowParallelLinear(128, 64, bias=False), {(): (64, 128)}),
        (linear.MergedColumnParallelLinear(64, [128, 128], bias=False), {(0,): (128, 64), (1,): (128, 64)}),
        (linear.QKVParallelLinear(64, 32, 4, 2, bias=False), {("q",): (128, 64), ("k",): (64, 64), ("v",): (64, 64)}),
        (vocabulary.VocabParallelEmbedding(256, 64), {(): (256, 64)}),
        (vocabulary.ParallelLMHead(256, 64), {(): (256, 64)}),
    ]
shares = []
for layer, parts in places:
    for part, shape in parts.items():
        whole = torch.randn(shape)
        with Reads(whole) as reads, torch.no_grad():
            layer.weight.weight_loader(layer.weight, whole, *part)
        shares.append(reads.num_bytes / whole.nbytes)
print(json.dumps(shares))
"""


@pytest.mark.slow
def test_vllms_loaders_read_half_of_a_tensor_for_one_of_two_workers() -> None:
    ended = subprocess.run([python(), "-c", SCRIPT, "1"], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == [0.5] * 9
