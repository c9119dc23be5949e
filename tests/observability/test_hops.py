"""One trace per turn through all hops, by the context in the messages, also over restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan

from openclaw_rl.observability import names, telemetry, turn_spans, version_spans
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.queue import SCHEMA as JUDGE_SCHEMA
from openclaw_rl.reward.queue import JudgeQueue
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.app import create_app
from openclaw_rl.serving.entrypoints.openai.http import HttpServer
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import policy_pb2, turn_pb2, weights_pb2
from openclaw_rl.v1.environment_pb2 import PolicyEvent
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from tests.observability.tracing import Tracing, tracing_in
from tests.rollouts.harness import Harness, turn, user
from tests.serving.stub import EOS, StubEngine, write_tokenizer
from tests.weights.support import FakeTarget, make_base, manifest, tensors

CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"
SECRET = "the quick brown secret"


class Traffic:
    """An HTTP door in front of a stub engine; what it recorded goes on to a session tracker and a judge."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Database(root / "policy.db", "group", SCHEMA)
        self.outbox = Outbox(self.store, "turns")
        template = ChatTemplate(write_tokenizer(root / "tokenizer"))
        self.engine = StubEngine(lambda prompt: [*template.encode("Hello there!"), EOS])
        self.desk = ChatService(TurnRecorder(self.store, self.outbox), "stub")
        self.desk.mark_ready(TokenPolicy(self.engine, template))
        self.http = HttpServer("127.0.0.1", 0)
        self.http.start(create_app(self.desk, client_digest))

    async def say(self, *texts: str, session: str = "s", headers: dict[str, str] | None = None,
                  **body: Any) -> httpx.Response:
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.post(f"{self.http.address}/v1/chat/completions", json={"messages": messages, **body},
                                     headers={"X-Session-Id": session, **(headers or {})})

    def recorded(self) -> list[turn_pb2.Turn]:
        return [PolicyEvent.FromString(row.payload).turn for row in self.outbox.window(0, 1000, 2**24)]

    async def stop(self) -> None:
        await self.http.stop()
        self.store.close()


@pytest.fixture
async def traffic(tmp_path: Path) -> Any:
    found = Traffic(tmp_path)
    yield found
    await found.stop()


async def judged(root: Path, transitions: list[turn_pb2.Transition]) -> list[turn_pb2.Sample]:
    """What a judge of rules, in a process of its own, makes of transitions."""

    class NoJournal:
        def score(self, *args: Any) -> None: ...

        def hint(self, *args: Any) -> None: ...

    store = Database(root / "judge.db", schema=JUDGE_SCHEMA)
    samples = Outbox(store, "samples")
    service = JudgeService(Panel(RulesJudge(), 2, 5), JudgeQueue(store, samples), Broadcast(),
                           NoJournal(), workers=1)  # type: ignore[arg-type]
    await service.accept(transitions)
    found = [turn_pb2.Sample.FromString(row.payload) for row in samples.window(0, 1000, 2**24)]
    store.close()
    return found


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def parent_of(span: ReadableSpan, spans: list[ReadableSpan]) -> str | None:
    return next((s.name for s in spans if s.context and span.parent and s.context.span_id == span.parent.span_id), None)


async def test_one_trace_from_the_caller_to_the_version_that_the_turn_trained(
        tracing: Tracing, traffic: Traffic, tmp_path: Path) -> None:
    traffic.engine.swap_after = {4: 9}
    first = await traffic.say(SECRET, headers={"traceparent": CALLER})
    reply = first.json()["choices"][0]["message"]["content"]
    await traffic.say(SECRET, reply, "That is wrong. Answer in one sentence.", headers={"X-Session-Done": "1"})
    turn_id = first.headers["x-openclaw-turn-id"]
    harness = Harness(tmp_path)
    harness.tell(*traffic.recorded())
    transitions = [turn_pb2.Transition.FromString(row.payload) for row in harness.outbox.window(0, 99, 2**24)]
    harness.store.close()
    tracing.restart()  # everything behind is another process
    samples = await judged(tmp_path, transitions)
    turn_spans.accepted(samples, lambda ids: [])
    tracing.restart()
    with version_spans.step() as step:
        step.on([turn_id], 3)
        made = weights_pb2.VersionManifest(version=4, turn_ids=[turn_id], trace=step.trace, metrics={"loss": 0.5})
        step.made(made)

    spans = [span for span in tracing.spans() if (span.attributes or {}).get(names.TURN) == turn_id]
    assert {trace_of(span) for span in spans} == {"ab" * 16}, "all of it joins the caller's trace"
    tree = {span.name: parent_of(span, spans) for span in spans}
    assert tree == {"POST /v1/chat/completions": None, "chat stub": "POST /v1/chat/completions",
                    "turn record": "chat stub", "next state": "chat stub", "evaluate": "chat stub",
                    "vote rules": "evaluate", "sample": "chat stub", "train": "chat stub"}
    by_name = {span.name: dict(span.attributes or {}) for span in spans}
    assert sum(span.name == "vote rules" for span in spans) == 2
    for name, values in by_name.items():
        assert values[names.SESSION] == "s" and values[names.VERSION] == 3, name
        assert name.startswith(("POST", "chat")) or values[names.TURN_CLASS] == "main", name
    chat = by_name["chat stub"]
    assert (chat[names.OPERATION], chat[names.REQUEST_MODEL], chat[names.CONVERSATION]) == ("chat", "stub", "s")
    assert chat[names.FINISH_REASONS] == ("stop",) and chat[names.INPUT_TOKENS] > 10 and chat[names.OUTPUT_TOKENS] > 5
    assert chat[names.SPANS] == ("3:0-4", f"9:4-{chat[names.OUTPUT_TOKENS]}"), "the versions changed in between"
    assert by_name["vote rules"][names.SCORE] == -1.0 and by_name["vote rules"][names.LABEL] == "dissatisfied"
    assert by_name["train"][names.TRAINED] == 4
    train_step, train = tracing.one("train step"), tracing.one("train")
    assert dict(train_step.attributes or {})[names.TRAINED] == 4
    assert trace_of(train_step) != "ab" * 16 and train_step.context and train.context
    assert [f"{link.context.trace_id:032x}" for link in train_step.links] == ["ab" * 16]
    assert [link.context.span_id for link in train.links] == [train_step.context.span_id]
    written = str([span.to_json() for span in tracing.spans()])
    assert SECRET not in written and "That is wrong" not in written, "no message text unless asked for"


async def test_message_text_only_when_asked_for(traffic: Traffic, tmp_path: Path) -> None:
    with tracing_in(tmp_path, capture_content=True) as tracing:
        await traffic.say(SECRET)
        await traffic.say("private words", turn={"x": 1}, headers={"X-No-Record": "1"})
        chat = tracing.spans("chat stub")[0].attributes or {}
        assert SECRET in str(chat[names.INPUT_MESSAGES]) and "Hello there!" in str(chat[names.OUTPUT_MESSAGES])
        turn_ = traffic.recorded()[0]
        turn_.turn_class = turn_pb2.TURN_CLASS_MAIN
        vote = turn_pb2.Vote(judge="m", score=1, rationale="well said")
        turn_spans.judged([(turn_pb2.Transition(turn=turn_), turn_pb2.Judgement(turn_id="a", score=1, votes=[vote]))])
        assert (tracing.one("vote m").attributes or {})[names.EXPLANATION] == "well said"


async def test_a_refused_request_and_one_that_broke(tracing: Tracing, traffic: Traffic) -> None:
    assert (await traffic.say("x", model="other")).status_code == 404
    request = tracing.one("POST /v1/chat/completions")
    assert (request.attributes or {})["http.response.status_code"] == 404 and request.status.is_unset
    traffic.engine.fail_after = 2
    assert (await traffic.say("x")).status_code >= 500
    assert tracing.spans("POST /v1/chat/completions")[1].status.status_code.name == "ERROR"
    chat = tracing.one("chat stub")
    assert chat.status.status_code.name == "ERROR" and (chat.attributes or {})[names.OUTPUT_TOKENS] == 2


async def test_several_choices_are_turns_of_one_trace(tracing: Tracing, traffic: Traffic) -> None:
    await traffic.say("x", n=3)
    recorded = traffic.recorded()
    assert len({t.trace.traceparent for t in recorded}) == 3, "each has its own place"
    assert len({t.trace.traceparent.split("-")[1] for t in recorded}) == 1


async def test_many_at_once_keep_to_their_own_traces(tracing: Tracing, traffic: Traffic) -> None:
    traffic.engine.delay = 0.001
    contexts = [f"00-{i + 1:032x}-{'1' * 16}-01" for i in range(20)]
    await asyncio.gather(*(traffic.say(f"number {i}", session=f"s{i}", headers={"traceparent": context})
                           for i, context in enumerate(contexts)))
    found = {t.session_id: int(t.trace.traceparent.split("-")[1], 16) for t in traffic.recorded()}
    assert found == {f"s{i}": i + 1 for i in range(20)}


async def test_a_caller_that_does_not_sample_is_heeded(tracing: Tracing, traffic: Traffic, tmp_path: Path) -> None:
    await traffic.say("x", headers={"traceparent": CALLER[:-2] + "00"})
    (recorded,) = traffic.recorded()
    assert recorded.trace.traceparent.endswith("-00")
    turn_spans.recorded(recorded)
    assert tracing.spans() == []


def test_a_turn_without_a_context_gets_one_that_lasts(tracing: Tracing, tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.tell(turn("a", [user("hi")], "Hello", session_done=True))
    (row,) = harness.outbox.window(0, 9, 2**20)
    transition = turn_pb2.Transition.FromString(row.payload)
    harness.store.close()
    record = tracing.one("turn record")
    assert trace_of(record) == transition.turn.trace.traceparent.split("-")[1]
    assert trace_of(tracing.one("next state")) == trace_of(record)


def test_a_dropped_sample_says_why_also_after_a_restart(tracing: Tracing) -> None:
    turn_spans.accepted([_sample("a"), _sample("b")], lambda ids: [])
    turn_spans.dropped(["a"], "stale: too old")
    tracing.restart()
    turn_spans.dropped(["b"], "no signal")
    spans = tracing.spans("sample dropped")
    assert [(span.attributes or {})[names.REASON] for span in spans] == ["stale: too old", "no signal"]
    assert {trace_of(span) for span in spans} == {"ab" * 16}
    assert (spans[1].attributes or {})[names.SESSION] == "s"


def _sample(turn_id: str) -> turn_pb2.Sample:
    return turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn_pb2.Turn(
        turn_id=turn_id, session_id="s", trace={"traceparent": CALLER})))


def test_a_step_that_fails_or_does_nothing(tracing: Tracing) -> None:
    with pytest.raises(ValueError), version_spans.step() as step:
        step.on(["a"], 0)
        raise ValueError("out of memory")
    assert "out of memory" in (tracing.one("train step").status.description or "")
    with version_spans.step():
        pass
    assert len(tracing.spans()) == 1, "a step without turns is none"


async def test_a_version_is_staged_and_activated_under_the_offers_context(tracing: Tracing, tmp_path: Path) -> None:
    base = make_base(tmp_path)
    target = FakeTarget(tmp_path / "policy", base)
    target.store.write(manifest(1, 0), tensors(1), base=0)  # on disk already, so nothing needs to be sent
    offer = weights_pb2.WeightOffer(manifest=target.store.manifest(1), tensors=target.store.specs(1))
    receiver = WeightReceiver(target)
    request = policy_pb2.SyncWeightsRequest(offer=offer, trace={"traceparent": CALLER})
    answers = [a async for a in receiver.handle(request)]
    commit = policy_pb2.SyncWeightsRequest(commit=weights_pb2.WeightCommit(version=1))
    answers += [a async for a in receiver.handle(commit)]
    answers += [a async for a in receiver.handle(request)]  # active already: refused
    await receiver.close()
    assert [a.WhichOneof("message") for a in answers] == ["need", "staged", "activated", "rejected"]
    found = tracing.spans("stage version", "activate version", "refuse version")
    assert [s.name for s in found] == ["stage version", "activate version", "refuse version"]
    assert {trace_of(s) for s in found} == {"ab" * 16}
    assert all((s.attributes or {})[names.VERSION] == 1 for s in found)
    activated = found[1].context
    assert activated and answers[2].activated.trace.traceparent.split("-")[2] == f"{activated.span_id:016x}"


async def test_disabled_nothing_is_traced_and_nothing_fails(traffic: Traffic) -> None:
    assert (await traffic.say("x", headers={"traceparent": CALLER})).status_code == 200
    (recorded,) = traffic.recorded()
    assert not recorded.HasField("trace")
    turn_spans.recorded(recorded)
    turn_spans.judged([(turn_pb2.Transition(turn=recorded), turn_pb2.Judgement())])
    with version_spans.step() as step:
        step.on(["a"], 1)
        assert step.trace is None
    telemetry.shutdown()


def test_a_fault_of_ours_costs_the_span_alone(tracing: Tracing, monkeypatch: pytest.MonkeyPatch,
                                              caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(turn_spans.context, "emit", lambda *args, **kwargs: 1 / 0)
    for _ in range(3):
        turn_spans.recorded(turn("a", [user("hi")], "Hello"))
    assert sum("a span was lost" in text for text in caplog.messages) == 1


def test_a_forgotten_sample_is_not_remembered(tracing: Tracing) -> None:
    turn_spans.accepted([_sample("a")], lambda ids: [])
    assert telemetry.forget("s", ["a"]) == 1
    turn_spans.dropped(["a"], "forgotten")
    span = tracing.one("sample dropped")
    assert names.SESSION not in (span.attributes or {}) and trace_of(span) != "ab" * 16
