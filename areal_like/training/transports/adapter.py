"""The adapter only, through files: it is small, and servers keep older versions for requests in progress."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from areal_like.process.run import Run
from areal_like.training.transports.base import Completion
from areal_like.training.transports.kept_versions import KeptVersions
from areal_like.weights.adapter import publish_adapter
from areal_like.weights.probe import Probe

if TYPE_CHECKING:
    from areal_like.training.engine import TrainEngine


class AdapterTransport:
    takes_adapter = True
    completes_in_background = False

    def __init__(self, run: Run, engine: "TrainEngine", require: Callable[[], None]) -> None:
        assert engine.adapter is not None, "the configuration is checked: actor.use_lora"
        self._run_id, self._peft_config = run.run_id, engine.adapter.peft_config
        self._num_bytes = sum(parameter.nbytes for parameter in engine.parameters)
        self._kept, self._require = KeptVersions(run, self._num_bytes), require
        self.reason = f"the adapter alone; {self._kept.reason}"

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> Completion:
        folder = publish_adapter(
            self._kept.root, version, tensors, self._peft_config, probe, self._run_id, self._require
        )
        self._kept.remove_others(version, self._require)
        published = {"version": version, "transport": "adapter", "folder": str(folder), "bytes": self._num_bytes}
        return lambda: published

    def keep(self, versions: Sequence[int]) -> None:
        self._kept.keep(versions)

    def close(self, early: bool) -> None:
        """The files are kept until the run has ended."""
