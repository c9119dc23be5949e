"""The writer thread of a file: runs what changes it, one after the other, so that no event loop waits for the file."""

from __future__ import annotations

import contextvars
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: Changes that share one commit.
GROUP = 64


class Job:
    """Something to be done on the writer thread. It is done even when nobody waits for it any more."""

    def __init__(self, work: Callable[..., Any], grouped: bool) -> None:
        """Args: grouped: it takes a connection and may share its transaction with others."""
        self.grouped = grouped
        self._work = work
        self._context = contextvars.copy_context()  # of who submits: spans and redaction depend on it
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # from here on it can't be cancelled

    def work(self, *args: Any) -> Any:
        """Do it, in the context of the one who submitted it."""
        return self._context.run(self._work, *args)

    def run(self) -> None:
        """Do it, and settle the future."""
        try:
            result = self.work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Writer:
    """A thread with a queue.

    Args:
        name: of the thread.
        commit: does a group of jobs in one transaction and settles their futures.
    """

    def __init__(self, name: str, commit: Callable[[Sequence[Job]], None]) -> None:
        self._commit = commit
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def here(self) -> bool:
        """The caller is on the thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Callable[..., T], grouped: bool) -> Future[T]:
        """Queue something; see Job.

        Raises:
            sqlite3.ProgrammingError: the file is closed.
        """
        job = Job(work, grouped)
        with self._changed:
            if self._closed:
                raise sqlite3.ProgrammingError("the file is closed")
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Do what is queued, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next():
            if group[0].grouped:
                self._commit(group)
            else:
                group[0].run()

    def _next(self) -> list[Job]:
        """The jobs that are done together; none once the file is closed."""
        group: list[Job] = []
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            while self._jobs and (not group or (group[0].grouped and self._jobs[0].grouped and len(group) < GROUP)):
                group.append(self._jobs.popleft())
        return group
