"""TensorBoard tracker: writes event files with TensorBoard's writer, without torch or TensorFlow."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers.base import Tracker
from areal_like.process.run import Run

FLUSH_S = 5
"""Seconds until logged values are visible."""
BINS = 30


class TensorBoard(Tracker):
    """Writes into `stats_logger.tensorboard.path`."""

    def __init__(self, run: Run) -> None:
        config = run.config.stats_logger.tensorboard
        super().__init__(config.log_extras)
        self.folder = run.trackers / config.path
        self._writer = EventFileWriter(str(self.folder), flush_secs=FLUSH_S)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, [Summary.Value(tag=name, simple_value=value) for name, value in values.items()])

    def show(self, extras: Extras) -> None:
        values = [Summary.Value(tag=name, histo=_histogram(each)) for name, each in extras.histograms.items()]
        if extras.samples:
            metadata = create_summary_metadata(display_name=extras.table, description="")
            table = _table([extras.columns, *extras.rows])
            values.append(Summary.Value(tag=extras.table, metadata=metadata, tensor=table))
        self._add(extras.step, values)

    def rewind(self, step: int) -> None:
        """Makes TensorBoard hide earlier values after this step."""
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, values: Sequence[Summary.Value]) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))


def _histogram(values: Sequence[float]) -> HistogramProto:
    counts, edges = np.histogram(values, bins=BINS)
    return HistogramProto(
        min=min(values),
        max=max(values),
        num=len(values),
        sum=sum(values),
        sum_squares=sum(value * value for value in values),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def _table(rows: Sequence[Sequence[object]]) -> TensorProto:
    """A table for the text plugin, which renders Markdown: line ends and bars would break a cell."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in (len(rows), len(rows[0]))])
    cells = [_cell(value).encode() for row in rows for value in row]
    return TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=cells)


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ⏎ ")
