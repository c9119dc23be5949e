"""Tell what a command is waiting for: a spinner on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

#: Seconds between two lines where there is no terminal; what takes less is not told there.
_EVERY = 10.0


class Narration:
    """Use it as a context manager, and call `say` when the command goes on to something else.

    Args:
        console: where to.
        text: what the command waits for, such as "stopping the trainer".
        every: seconds between two lines where there is no terminal.
    """

    def __init__(self, console: Console, text: str, every: float = _EVERY) -> None:
        self._console, self._text, self._every = console, text, every
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(SpinnerColumn(), TextColumn("{task.description}", markup=False),
                                      TimeElapsedColumn(), console=console, transient=True)
            self._task = self._progress.add_task(text, total=None)
        self._thread = threading.Thread(target=self._tell, name="narration", daemon=True)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        else:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self._ended.set()
        if self._progress is not None:
            self._progress.stop()
        else:
            self._thread.join()

    def say(self, text: str) -> None:
        """Wait for something else from now on."""
        self._text = text
        if self._progress is not None:
            self._progress.update(self._task, description=text)

    def _tell(self) -> None:
        while not self._ended.wait(self._every):
            self._console.print(f"{self._text} ({time.monotonic() - self._began:.0f} s)", highlight=False, markup=False,
                                soft_wrap=True)
