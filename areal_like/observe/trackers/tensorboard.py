"""TensorBoard event files, by TensorBoard's own writer: torch and TensorFlow are not needed for it."""

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from areal_like.observe.trackers.base import Tracker
from areal_like.process.run import Run

FLUSH_S = 5
"""Seconds after which what was logged can be seen."""


class TensorBoard(Tracker):
    """Writes into `stats_logger.tensorboard.path`."""

    def __init__(self, run: Run) -> None:
        self.folder = run.directory / run.config.stats_logger.tensorboard.path
        self._writer = EventFileWriter(str(self.folder), flush_secs=FLUSH_S)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def rewind(self, step: int) -> None:
        """TensorBoard hides what earlier files say from this step on."""
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        self._writer.close()
