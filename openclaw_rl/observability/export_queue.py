"""A bounded export queue for ended spans, with a thread of its own and a count of dropped spans.

Like OpenTelemetry's BatchSpanProcessor, but it counts, keeps a batch that could not be delivered for a while, and its
end takes no longer than it is told: with a full queue and a dead collector that processor's shutdown takes half a
minute.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from openclaw_rl.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

#: Times that a batch is offered before it is dropped, in case that it is the batch that is refused.
_ATTEMPTS = 8
#: Seconds between two of them: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0


def _setting(name: str, default: int) -> int:
    """A number from one of OpenTelemetry's variables; what can't be read is the default."""
    try:
        value = int(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if value > 0 else default


class SpanQueue(SpanProcessor):
    """Takes ended spans without waiting, and exports them from its thread.

    Args:
        export: delivers spans, gives "" or why it could not. It may raise. Called on the queue's thread only.
        delay: seconds between two exports; default OTEL_BSP_SCHEDULE_DELAY, else 0.2.
        size: most spans that wait, others are dropped; default OTEL_BSP_MAX_QUEUE_SIZE, else 2048.
        batch: most spans of an export; default OTEL_BSP_MAX_EXPORT_BATCH_SIZE, else 512.
    """

    def __init__(self, export: Callable[[Sequence[ReadableSpan]], str], name: str, *, delay: float | None = None,
                 size: int | None = None, batch: int | None = None) -> None:
        self._export, self._name = export, name
        self._delay = delay if delay is not None else _setting("OTEL_BSP_SCHEDULE_DELAY", 200) / 1000
        self._size = size or _setting("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        self._batch = min(batch or _setting("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), self._size)
        self.dropped = 0  #: spans that will never be delivered
        self.delivered = 0
        self.error = ""  #: why the last export failed; "" when it did not
        self._waiting: deque[ReadableSpan] = deque()
        self._lock = threading.Lock()  # of the two counts and the queue's length
        self._wake = threading.Event()
        self._busy = False
        self._idle = threading.Condition(self._lock)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"spans to {name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Spans that wait."""
        return len(self._waiting)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; never waits."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        with self._lock:
            if self._ending.is_set() or len(self._waiting) >= self._size:
                self.dropped += 1
                return
            self._waiting.append(span)
            full = len(self._waiting) >= self._batch
        if full:
            self._wake.set()

    def force_flush(self, timeout_millis: int = 2000) -> bool:
        """Export now, and wait until nothing waits or the time has passed; whether nothing waits. Not in an event
        loop."""
        deadline = time.monotonic() + timeout_millis / 1000
        self._wake.set()
        with self._idle:
            while self._waiting or self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._idle.wait(min(left, 0.05))
                self._wake.set()
        return True

    def shutdown(self, timeout: float = 2.0) -> None:
        """Export what waits, for at most `timeout` seconds; what is left then is dropped. Not in an event loop."""
        with self._lock:
            self._ending.set()
        self._wake.set()
        self._thread.join(timeout)
        with self._lock:
            self.dropped += len(self._waiting)
            self._waiting.clear()

    def _run(self) -> None:
        attempts, pause = 0, 0.0
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            if pause:  # a full queue is no reason to try sooner
                self._ending.wait(pause)
            else:
                self._wake.wait(self._delay)
            self._wake.clear()
            while True:
                with self._lock:
                    spans = list(islice(self._waiting, self._batch))
                    self._busy = bool(spans)
                    if not spans:
                        self._idle.notify_all()
                if not spans:
                    break
                error = self._try(spans)
                if error:
                    attempts, pause = attempts + 1, backoff.next()
                else:
                    attempts, pause = 0, 0.0
                    backoff.reset()
                given_up = attempts >= _ATTEMPTS
                with self._lock:
                    self._busy = False
                    if not error or given_up:
                        for _ in range(min(len(spans), len(self._waiting))):
                            self._waiting.popleft()
                        if error:
                            self.dropped += len(spans)
                            attempts = 0
                        else:
                            self.delivered += len(spans)
                if error:
                    break
            if self._ending.is_set():
                return

    def _try(self, spans: Sequence[ReadableSpan]) -> str:
        try:
            error = self._export(spans)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        if error and not self.error:
            logger.warning("cannot deliver spans to %s: %s", self._name, error)
        elif self.error and not error:
            logger.info("delivering spans to %s again", self._name)
        self.error = error
        return error
