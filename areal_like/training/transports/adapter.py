"""The adapter only, through files: it is small, and servers keep older versions for requests in progress."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from areal_like.process.run import Run
from areal_like.training.transports.base import Completion
from areal_like.training.transports.disk import VERSIONS_KEPT
from areal_like.weights.adapter import publish_adapter
from areal_like.weights.disk import remove_versions
from areal_like.weights.probe import Probe
from areal_like.weights.publication_root import publication_root

if TYPE_CHECKING:
    from areal_like.training.engine import TrainEngine


class AdapterTransport:
    takes_adapter = True
    completes_in_background = False

    def __init__(self, run: Run, engine: "TrainEngine") -> None:
        assert engine.adapter is not None, "the configuration is checked: actor.use_lora"
        self._run_id, self._peft_config = run.run_id, engine.adapter.peft_config
        self._num_bytes = sum(parameter.nbytes for parameter in engine.parameters)
        self._root, reason = publication_root(run, run.config.cluster.n_nodes > 1, self._num_bytes)
        self.reason = f"the adapter alone; {reason}"

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> Completion:
        folder = publish_adapter(self._root, version, tensors, self._peft_config, probe, self._run_id)
        remove_versions(self._root, keep=set(range(version - VERSIONS_KEPT + 1, version + 1)))
        published = {"version": version, "transport": "adapter", "folder": str(folder), "bytes": self._num_bytes}
        return lambda: published

    def close(self, early: bool) -> None:
        """The files are kept until the run has ended."""
