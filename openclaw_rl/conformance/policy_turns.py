"""What a policy server sends on: each turn once, whatever happens to the line; the kit is the environment server."""

from __future__ import annotations

import time

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.conformance.listener import Faults, Listener
from openclaw_rl.conformance.policy_calls import (
    ANSWER,
    Answer,
    chat,
    check_spans,
    first_event,
    request,
    state,
)
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.turn_pb2 import FINISH_REASON_CANCELLED, Feedback, Turn

_POLICY = ("policy",)
_LISTEN = (Need.LISTEN,)
#: Seconds for a turn to arrive, also after a break: a sender's pauses grow to some seconds.
ARRIVES = 30.0


def _listener(kit: Context) -> Listener:
    assert kit.listener is not None
    return kit.listener


async def _recorded(kit: Context, count: int, session: str = "") -> list[Answer]:
    """Chats whose turns are to be recorded, one after the other."""
    return [await chat(kit, f"Say the number {i}.", session=session or kit.session(), record=True)
            for i in range(count)]


def _ids(answers: list[Answer]) -> list[str]:
    return [answer.start.turn_id for answer in answers]


@check("policy.turns", "Each response is sent to the environment server once, with its request unchanged.",
       services=_POLICY, needs=_LISTEN, after=["policy.chat"], seconds=4 * ANSWER, where="turn.proto: Turn")
async def recorded(kit: Context) -> None:
    listener, session = _listener(kit), kit.session()
    now = await state(kit)
    answers = await _recorded(kit, 3, session)
    await listener.wait(_ids(answers), ARRIVES, "turns")
    order = listener.first(_ids(answers))
    kit.expect(order == _ids(answers), f"the turns of a session arrived in the order {listed(order)}; they were "
               f"complete in the order {listed(_ids(answers))}")
    for i, answer in enumerate(answers):
        arrivals = listener.got(answer.start.turn_id)
        kit.expect(len(arrivals) == 1, f"turn {answer.start.turn_id} was sent {len(arrivals)} times, though it was "
                   "acknowledged at once")
        kit.expect(arrivals[0].message.WhichOneof("event") == "turn", "a turn's id came with an event that is no turn")
        _look_at(kit, arrivals[0].message.turn, answer, session, f"Say the number {i}.", bool(now.vocab_size))


def _look_at(kit: Context, turn: Turn, answer: Answer, session: str, asked: str, tokens: bool) -> None:
    what = f"turn {turn.turn_id}"
    kit.expect(turn.session_id == session, f"{what} has the session {turn.session_id!r}, not {session!r}")
    said = [message.content for message in turn.messages if message.role == "user"]
    kit.expect(said == [asked], f"{what} has the user messages {said}; asked was {asked!r}")
    kit.expect(len(turn.messages) == 1, f"{what} has {len(turn.messages)} messages where one was sent: what the server "
               "adds for its model does not belong to the turn")
    kit.expect(turn.response.content == answer.end.message.content, f"{what} has the response "
               f"{turn.response.content[:80]!r}; the client got {answer.end.message.content[:80]!r}")
    kit.expect(turn.finish_reason == answer.end.generation.finish_reason, f"{what} has another finish_reason than the "
               "response")
    kit.expect(turn.model == answer.start.model, f"{what} has the model {turn.model!r}, the response "
               f"{answer.start.model!r}")
    kit.expect(turn.policy_version == answer.start.policy_version, f"{what} has version {turn.policy_version}, the "
               f"response {answer.start.policy_version}")
    for field in ("requested_at", "finished_at"):
        kit.expect(turn.HasField(field), f"{what} has no {field}")
    kit.expect(turn.requested_at.ToNanoseconds() <= turn.finished_at.ToNanoseconds(), f"{what} was finished before it "
               "was asked for")
    if not tokens:
        return
    kit.expect(turn.HasField("tokens"), f"{what} has no token ids, though the model has some")
    record, sampled = turn.tokens, [token.id for token in answer.tokens]
    kit.expect(list(record.response_ids) == sampled, f"{what} has other response_ids than the client got")
    kit.expect(len(record.prompt_ids) == answer.end.generation.prompt_tokens, f"{what} has {len(record.prompt_ids)} "
               f"prompt_ids; the response's end says {answer.end.generation.prompt_tokens}")
    for field in ("logprobs", "model_logprobs"):
        kit.expect(len(getattr(record, field)) == len(sampled), f"{what} has {len(getattr(record, field))} {field} for "
                   f"{len(sampled)} tokens")
    check_spans(kit, record.spans, len(sampled), what)


@check("policy.turns.no_record", "A request with no_record produces no turn.", services=_POLICY, needs=_LISTEN,
       after=["policy.turns"], seconds=3 * ANSWER, where="turn.proto: TurnOptions.no_record")
async def not_recorded(kit: Context) -> None:
    listener = _listener(kit)
    silent = await chat(kit, session=kit.session())
    told = await _recorded(kit, 1)
    await listener.wait(_ids(told), ARRIVES, "turns")
    kit.expect(not listener.got(silent.start.turn_id), f"turn {silent.start.turn_id} was sent, though its request has "
               "no_record")


@check("policy.turns.session_done", "The turn of a request with session_done carries it.", services=_POLICY,
       needs=_LISTEN,
       after=["policy.turns"], seconds=2 * ANSWER, where="turn.proto: Turn.session_done, declared_type")
async def session_done(kit: Context) -> None:
    answer = await chat(kit, session=kit.session(), record=True, session_done=True, turn_type="side",
                        metadata={"key": "value"})
    await _listener(kit).wait([answer.start.turn_id], ARRIVES, "turns")
    turn = _listener(kit).got(answer.start.turn_id)[0].message.turn
    kit.expect(turn.session_done, "the turn does not say that its session is done")
    kit.expect(turn.declared_type == "side", f"the turn has the declared_type {turn.declared_type!r}; the client said "
               "'side'")
    kit.expect(turn.metadata == {"key": "value"}, "the request's metadata are not in the turn")


@check("policy.turns.cancelled", "A response cancelled by its client is recorded as cancelled, with its partial text.",
       services=_POLICY, needs=_LISTEN, after=["policy.turns"], seconds=2 * ANSWER, where="policy.proto: Chat")
async def cancelled(kit: Context) -> None:
    call = kit.stream("Chat", request("Tell me a long story about a heron.", tokens=400, session=kit.session(),
                                      record=True), timeout=ANSWER)
    turn_id = (await first_event(kit, call)).start.turn_id
    call.cancel()
    await _listener(kit).wait([turn_id], ARRIVES, "cancelled turns")
    turn = _listener(kit).got(turn_id)[0].message.turn
    if turn.finish_reason != FINISH_REASON_CANCELLED:
        kit.expect(turn.response.content, "a cancelled turn is recorded as complete and has no response")
        kit.skip("the response was complete before it could be cancelled")


@check("policy.turns.resend", "After a break, unacknowledged turns are resent unchanged and in order; acknowledged "
                              "ones are not.", services=_POLICY, needs=_LISTEN, after=["policy.turns"],
       seconds=5 * ANSWER,
       where="environment.proto: RecordTurns")
async def resent(kit: Context) -> None:
    listener = _listener(kit)
    acked = _ids(await _recorded(kit, 1))
    await listener.wait(acked, ARRIVES, "turns")
    listener.cut()
    listener.behave(Faults(silent=True))
    session = kit.session()
    ids = _ids(await _recorded(kit, 3, session))
    await listener.wait(ids[:1], ARRIVES, "turns")
    before = listener.streams
    listener.behave()
    listener.cut()
    await kit.until(lambda: {*ids} <= {*_behind(listener, before)}, ARRIVES,
                    lambda: f"{len({*ids} - {*_behind(listener, before)})} of {len(ids)} turns that were not "
                            f"acknowledged were not sent again within {ARRIVES:g} s after the stream broke")
    again = [id for id in dict.fromkeys(_behind(listener, before)) if id in ids]
    kit.expect(again == ids, f"after the break the turns came in the order {listed(again)}; they were complete in the "
               f"order {listed(ids)}")
    for id in ids:
        contents = {arrival.message.SerializeToString(deterministic=True) for arrival in listener.got(id)}
        kit.expect(len(contents) == 1, f"turn {id} has another content when it is sent again")
    kit.expect(len(listener.got(acked[0])) == 1, f"turn {acked[0]} was sent again, though it had been acknowledged")


def _behind(listener: Listener, streams: int) -> list[str]:
    """Ids of what arrived on streams behind the first so many."""
    return [arrival.id for arrival in listener.arrivals if arrival.stream > streams]


@check("policy.turns.cuts", "Turns arrive over a connection that breaks repeatedly.", services=_POLICY, needs=_LISTEN,
       after=["policy.turns.resend"], seconds=5 * ANSWER, where="environment.proto: RecordTurns")
async def cuts(kit: Context) -> None:
    listener = _listener(kit)
    listener.behave(Faults(cut_after=1))
    listener.cut()
    ids = _ids(await _recorded(kit, 4))
    await listener.wait(ids, 2 * ARRIVES, "turns, over a line that breaks behind each acknowledgement,")


@check("policy.turns.down", "While the environment server is down, chats are answered as quickly, and their turns "
                            "arrive once it is back.", services=_POLICY, needs=_LISTEN, after=["policy.turns"],
       seconds=5 * ANSWER,
       where="environment.proto: RecordTurns")
async def down(kit: Context) -> None:
    listener = _listener(kit)
    _, usual = await _timed(kit)
    listener.behave(Faults(closed=True))
    listener.cut()
    ids = []
    for _ in range(3):
        id, took = await _timed(kit)
        ids.append(id)
        kit.expect(took < 3 * usual + 2, f"a chat takes {took:.1f} s while the environment server is down, and "
                   f"{usual:.1f} s while it is there")
    listener.behave()
    await listener.wait(ids, ARRIVES, "turns that were made while the environment server was down")


async def _timed(kit: Context) -> tuple[str, float]:
    """A turn's id, and the seconds that its response took."""
    began = time.monotonic()
    ids = _ids(await _recorded(kit, 1))
    return ids[0], time.monotonic() - began


@check("policy.turns.rejected", "A turn rejected by the environment server is not resent and blocks no other.",
       services=_POLICY, needs=_LISTEN, after=["policy.turns"], seconds=4 * ANSWER, where="common.proto: "
       "ACK_STATUS_REJECTED")
async def rejected(kit: Context) -> None:
    listener, session = _listener(kit), kit.session()
    listener.behave(Faults(refuse=lambda event: "the kit rejects it" if event.turn.session_id == session else ""))
    listener.cut()
    bad = _ids(await _recorded(kit, 1, session))
    await listener.wait(bad, ARRIVES, "turns")
    good = _ids(await _recorded(kit, 1))
    await listener.wait(good, ARRIVES, "turns behind one that was rejected")
    listener.behave()
    listener.cut()
    more = _ids(await _recorded(kit, 1))
    await listener.wait(more, ARRIVES, "turns")
    kit.expect(len(listener.got(bad[0])) == 1, f"turn {bad[0]} was sent again, though it had been rejected")


@check("policy.turns.killed", "A turn whose response was complete is sent after kill -9 and a restart.",
       services=_POLICY, needs=(Need.LISTEN, Need.START), after=["policy.turns"], seconds=5 * ANSWER,
       where="environment.proto: RecordTurns")
async def killed(kit: Context) -> None:
    listener = _listener(kit)
    listener.behave(Faults(closed=True))
    listener.cut()
    ids = _ids(await _recorded(kit, 2))
    await kit.restart()
    listener.behave()
    await listener.wait(ids, ARRIVES, "turns that were complete before the server was killed")


@check("policy.feedback", "SubmitFeedback returns an id, keeps a given one, and rejects feedback without content or "
                          "subject.", services=_POLICY, after=["policy.chat"], seconds=2 * ANSWER,
       where="turn.proto: Feedback")
async def feedback(kit: Context) -> None:
    turn_id = (await chat(kit, session=kit.session(), record=True)).start.turn_id
    made = await _submit(kit, Feedback(turn_id=turn_id, score=1.0))
    kit.expect(made, "SubmitFeedback answers without a feedback_id")
    mine = kit.id("feedback")
    given = await _submit(kit, Feedback(feedback_id=mine, turn_id=turn_id, comment="Well said."))
    kit.expect(given == mine, f"SubmitFeedback answers with the id {given!r}; it was given {mine!r}")
    if kit.listener is not None:
        await kit.listener.wait([made, mine], ARRIVES, "feedbacks")
        told = kit.listener.got(mine)[0].message.feedback
        kit.expect(told.turn_id == turn_id and told.comment == "Well said.", "the feedback that arrived is not the one "
                   "that was given")
        kit.expect(told.HasField("given_at"), "the feedback that arrived does not say when it was given")
    for what, field, bad in (("about no turn and no session", "turn_id", Feedback(score=1.0)),
                             ("without score and comment", "score", Feedback(turn_id=turn_id)),
                             ("with the score 2", "score", Feedback(turn_id=turn_id, score=2.0))):
        refused = await kit.refused(_submit(kit, bad), grpc.StatusCode.INVALID_ARGUMENT, what=f"feedback {what}")
        kit.expect(any(field in name for name in refused.violations), f"feedback {what} was refused, but no field "
                   f"violation names {field}")


async def _submit(kit: Context, given: Feedback) -> str:
    answer = await kit.unary("SubmitFeedback", pb.SubmitFeedbackRequest(feedback=given))
    return str(answer.feedback_id)
