"""Figures of each step as TensorBoard event files: `tensorboard --logdir ~/.openclaw-rl/trainer/tensorboard`.

Written by tensorboardX's events writer, record by record on the caller's thread. Its SummaryWriter would hand them to a
thread over a queue of multiprocessing: when the disk is full that thread ends, and the queue then blocks training.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class Board:
    """Event files in a folder, a new one for each process and after each error. Used by one thread.

    Args:
        folder: made when there is something to write.

    Attributes:
        problem: why the last step could not be written; empty when it could.
    """

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        self._folder = folder
        self._writer: Any = None

    def write(self, version: int, figures: Mapping[str, float], at: float) -> None:
        """Write one scalar per figure. Raises nothing: training goes on without.

        Args:
            version: the step's number.
            figures: by name; each becomes `step/NAME`.
            at: when, in seconds since the epoch.
        """
        try:
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary

            if self._writer is None:
                self._writer = self._open()
            for name, value in sorted(figures.items()):
                self._writer.write_event(Event(wall_time=at, step=version, summary=Summary(
                    value=[Summary.Value(tag=f"step/{name}", simple_value=value)])))
            self._writer.flush()
            self.problem = ""
        except Exception as error:  # a full disk, a folder that was deleted, a package that doesn't fit
            text = f"{self._folder}: {error}"
            if text != self.problem:
                logger.warning("the step's figures can't be written for TensorBoard: %s", text)
            self.problem = text
            self.close()

    def _open(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # Its name has the time in whole seconds only, and a container's processes have the same id at each start.
        return EventsWriter(str(self._folder / "events"), f".{time.time_ns()}.{os.getpid()}")

    def close(self) -> None:
        """Close the file. Raises nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except Exception as error:
                logger.debug("%s: %s", self._folder, error)
