"""Spans on their way out: bounded, counted, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from openclaw_rl.observability import export_queue as queue_module
from openclaw_rl.observability.export_queue import SpanQueue
from tests.support.waiting import until


@contextmanager
def traced(queue: SpanQueue, **options: object) -> Iterator[Callable[[int], None]]:
    provider = TracerProvider(shutdown_on_exit=False, **options)  # type: ignore[arg-type]
    provider.add_span_processor(queue)
    tracer = provider.get_tracer("t")

    def make(count: int) -> None:
        for i in range(count):
            tracer.start_span(f"span {i}").end()

    yield make
    queue.shutdown(1.0)


def test_what_is_taken_is_delivered_in_order_and_soon() -> None:
    got: list[str] = []

    def export(spans: Sequence[ReadableSpan]) -> str:
        got.extend(span.name for span in spans)
        return ""

    with traced(SpanQueue(export, "x", delay=0.05, batch=10)) as make:
        make(25)
        until(lambda: len(got) == 25, 2.0)
    assert got == [f"span {i}" for i in range(25)]


def test_a_full_queue_drops_and_counts_without_waiting() -> None:
    blocked = threading.Event()

    def export(spans: Sequence[ReadableSpan]) -> str:
        blocked.wait(20)
        return ""

    queue = SpanQueue(export, "x", size=100, batch=50)
    with traced(queue) as make:
        began = time.perf_counter()
        make(1000)
        assert time.perf_counter() - began < 1.0
        assert queue.waiting == 100 and queue.dropped == 900
        blocked.set()
        assert queue.force_flush(3000)
        assert queue.delivered == 100 and queue.dropped == 900


def test_a_collector_that_comes_back_gets_what_waited(caplog: pytest.LogCaptureFixture) -> None:
    answers = ["refused", "refused", ""]
    got: list[int] = []

    def export(spans: Sequence[ReadableSpan]) -> str:
        answer = answers.pop(0)
        if not answer:
            got.append(len(spans))
        return answer

    queue = SpanQueue(export, "x", delay=0.01)
    with traced(queue) as make:
        make(5)
        until(lambda: got == [5])
    assert queue.dropped == 0 and queue.error == ""
    assert sum("cannot deliver spans" in text for text in caplog.messages) == 1, "told once, not at each try"


def test_a_batch_that_is_never_taken_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(queue_module, "_ATTEMPTS", 3)
    bad, got = {"span 0"}, []

    def export(spans: Sequence[ReadableSpan]) -> str:
        if bad & {span.name for span in spans}:
            raise ValueError("not this one")
        got.extend(span.name for span in spans)
        return ""

    queue = SpanQueue(export, "x", delay=0.01, batch=1)
    with traced(queue) as make:
        make(3)
        until(lambda: got == ["span 1", "span 2"])
    assert queue.dropped == 1


def test_the_end_takes_no_longer_than_it_is_told() -> None:
    queue = SpanQueue(lambda spans: time.sleep(30) or "", "x", size=10)
    with traced(queue) as make:
        make(50)
        until(lambda: queue._busy)
        began = time.monotonic()
        queue.shutdown(0.5)
        assert time.monotonic() - began < 1.0
        assert queue.dropped == 50
        make(1)
        assert queue.dropped == 51, "counted also behind the end"


def test_what_is_not_sampled_costs_no_place() -> None:
    queue = SpanQueue(lambda spans: "", "x")
    with traced(queue, sampler=ALWAYS_OFF) as make:
        make(5)
        assert queue.waiting == queue.delivered == queue.dropped == 0
