"""Checks of sessions: turns, links between them, next states."""

from __future__ import annotations

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Level, Need, check
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.ring_stream import accepted
from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import environment_pb2, turn_pb2

_ENVIRONMENT = ["environment"]
_ACCEPTED = ["ring.acks.accepted"]
_NEXT = "turn.proto: NextState; design, Words: next state"
#: Seconds for a transition to arrive.
_ARRIVE = 20.0


def _events(turns: list[turn_pb2.Turn]) -> list[environment_pb2.PolicyEvent]:
    return [environment_pb2.PolicyEvent(turn=turn) for turn in turns]


def _end(kit: Context, session: str) -> environment_pb2.PolicyEvent:
    return environment_pb2.PolicyEvent(session_end=turn_pb2.SessionEnd(
        event_id=kit.id("end"), session_id=session, ended_at=now()))


async def _session(kit: Context, session: str) -> environment_pb2.GetSessionResponse:
    answer: environment_pb2.GetSessionResponse = await kit.unary(
        "GetSession", environment_pb2.GetSessionRequest(session_id=session))
    return answer


@check("environment.session", "GetSession returns a session's turns, oldest first, each with its class.",
       where="environment.proto: GetSession, TurnSummary", services=_ENVIRONMENT, after=_ACCEPTED)
async def session(kit: Context) -> None:
    name = kit.session()
    turns = Material(kit).conversation(name, 3)
    await accepted(kit, _events(turns), size=1)
    found = await _session(kit, name)
    kit.expect(found.session.session_id == name, f"session_id is {found.session.session_id!r}")
    kit.expect(found.session.turns == 3 and not found.session.ended, f"it has {found.session.turns} turns, ended is "
               f"{found.session.ended}")
    ids = [turn.turn_id for turn in found.turns]
    kit.expect(ids == [turn.turn_id for turn in turns], f"the turns are {listed(ids)}")
    for one in found.turns:
        kit.expect(one.turn_class in turn_pb2.TurnClass.values()[1:], f"the class of {one.turn_id} is {one.turn_class}")
        kit.expect(one.state in environment_pb2.TurnState.values()[1:], f"the state of {one.turn_id} is {one.state}")
    kit.expect(found.session.HasField("started_at") and found.session.HasField("last_active_at"),
               "started_at or last_active_at is not set")


@check("environment.session.end", "A session ended on the ring or by EndSession is over; a later turn reopens it.",
       where="environment.proto: Session.ended", services=_ENVIRONMENT,
       after=["environment.session"])
async def session_end(kit: Context) -> None:
    material = Material(kit)
    for way in ("session_end", "EndSession"):
        name = kit.session()
        first, second = material.conversation(name, 2)
        await accepted(kit, _events([first]))
        if way == "EndSession":
            await kit.unary("EndSession", environment_pb2.EndSessionRequest(session_id=name))
        else:
            await accepted(kit, [_end(kit, name)])
        kit.expect((await _session(kit, name)).session.ended, f"after {way} it has not ended")
        await accepted(kit, _events([second]))
        kit.expect(not (await _session(kit, name)).session.ended, f"after {way} and a later turn it has ended")


@check("environment.turns", "ListTurns returns a session's turns, newest first, in pages.",
       where="environment.proto: ListTurns", services=_ENVIRONMENT, after=["environment.session"])
async def list_turns(kit: Context) -> None:
    name = kit.session()
    turns = Material(kit).conversation(name, 5)
    await accepted(kit, _events(turns), size=1)
    wanted = [turn.turn_id for turn in reversed(turns)]
    found: list[str] = []
    token = ""
    for _ in range(4):
        page = await kit.unary("ListTurns", environment_pb2.ListTurnsRequest(session_id=name, page_size=2,
                                                                           page_token=token))
        kit.expect(len(page.turns) <= 2, f"a page of 2 has {len(page.turns)} turns")
        found += [turn.turn_id for turn in page.turns]
        token = page.next_page_token
        if not token:
            break
    kit.expect(not token, "there are more pages than turns")
    kit.expect(found == wanted, f"the turns are {listed(found)}")
    some = await kit.unary("ListTurns", environment_pb2.ListTurnsRequest(turn_ids=wanted[1:3]))
    kit.expect({turn.turn_id for turn in some.turns} == set(wanted[1:3]), "asked for two turns by id; told "
               f"{listed(turn.turn_id for turn in some.turns)}")


@check("environment.side", "A turn declared as side turn is one, and is not sent to the judge.",
       where="turn.proto: TurnClass; design, Words: turn class", services=_ENVIRONMENT, after=["environment.session"])
async def side(kit: Context) -> None:
    name = kit.session()
    turn, more = Material(kit).conversation(name, 2)
    turn.declared_type = more.declared_type = "side"
    await accepted(kit, [*_events([turn, more]), _end(kit, name)])
    for one in (await _session(kit, name)).turns:
        kit.expect(one.turn_class == turn_pb2.TURN_CLASS_SIDE, f"its class is {one.turn_class}")
        kit.expect(one.state == environment_pb2.TURN_STATE_NOT_TRAINABLE, f"its state is {one.state}")
    if kit.listener is not None:
        kit.expect(not kit.listener.first([turn.turn_id, more.turn_id]), "it was sent to the judge")


@check("environment.users", "Turns of different clients are never joined into one session, and no client learns of "
                            "another's session.",
       where="turn.proto: Turn.client; design: it never mixes two users' sessions",
       services=_ENVIRONMENT, after=["environment.session"])
async def users(kit: Context) -> None:
    material = Material(kit)
    first, second = material.conversation("", 2)
    first.session_source = second.session_source = turn_pb2.SESSION_SOURCE_UNSPECIFIED
    first.client, second.client = "conformance-one", "conformance-two"
    first.declared_type = second.declared_type = "side"
    await accepted(kit, _events([first, second]), size=1)
    found = await kit.unary("ListTurns", environment_pb2.ListTurnsRequest(turn_ids=[first.turn_id, second.turn_id]))
    sessions = {turn.turn_id: turn.session_id for turn in found.turns}
    kit.expect(len(sessions) == 2, f"ListTurns tells {len(sessions)} of 2 turns")
    kit.expect(sessions[first.turn_id] != sessions[second.turn_id], f"both are in session {sessions[first.turn_id]!r}")


@check("environment.next-state", "A turn's next state has everything between its response and the next one: tool "
                                 "results and user messages in order, kind CONTINUED, and the continuing turn.",
       where=_NEXT,
       services=_ENVIRONMENT, needs=[Need.LISTEN], after=["onward.arrives"], seconds=40)
async def next_state(kit: Context) -> None:
    material, name = Material(kit), kit.session()
    first = material.turn(kit.id(), name)
    first.response.CopyFrom(turn_pb2.ChatMessage(role="assistant", tool_calls=[
        turn_pb2.ToolCall(id="call-1", name="look", arguments_json="{}"),
        turn_pb2.ToolCall(id="call-2", name="look", arguments_json='{"at": 2}')]))
    first.finish_reason = turn_pb2.FINISH_REASON_TOOL_CALLS
    between = [turn_pb2.ChatMessage(role="tool", tool_call_id="call-1", content="a cup"),
               turn_pb2.ChatMessage(role="tool", tool_call_id="call-2", content="a table")]
    second = material.turn(kit.id(), name, said="Go on.", history=[*first.messages, first.response, *between])
    await accepted(kit, [*_events([first, second]), _end(kit, name)], size=1)
    await _listener(kit).wait([first.turn_id, second.turn_id], _ARRIVE, "transitions")
    state = _came(kit, first).next_state
    kit.expect(state.kind == turn_pb2.NEXT_STATE_KIND_CONTINUED, f"the kind is {_kind(state)}")
    wanted = [*((one.role, one.content) for one in between), ("user", "Go on.")]
    found = [(one.role, one.content) for one in state.messages]
    kit.expect(found == wanted, f"the messages are {listed(found)}; between the two responses were {listed(wanted)}")
    kit.expect(state.next_turn_id == second.turn_id, f"next_turn_id is {state.next_turn_id!r}, not {second.turn_id!r}")
    last = _came(kit, second).next_state
    kit.expect(last.kind == turn_pb2.NEXT_STATE_KIND_SESSION_ENDED, f"the last turn's kind is {_kind(last)}, and the "
               "session was ended")
    kit.expect(not last.messages and not last.next_turn_id, "the last turn has a next state that nobody has said")


@check("environment.next-state.once", "A turn gets one next state and is sent on once, whatever comes later.",
       where=_NEXT, services=_ENVIRONMENT, needs=[Need.LISTEN], after=["environment.next-state"], seconds=40)
async def next_state_once(kit: Context) -> None:
    material, name = Material(kit), kit.session()
    turns = material.conversation(name, 3)
    await accepted(kit, _events(turns), size=1)
    await accepted(kit, [_end(kit, name)])
    await accepted(kit, [_end(kit, name)])
    ids = [turn.turn_id for turn in turns]
    await _listener(kit).wait(ids, _ARRIVE, "transitions")
    later = material.conversation(kit.session(), 1)
    await accepted(kit, [*_events(later), _end(kit, later[0].session_id)])
    await _listener(kit).wait([later[0].turn_id], _ARRIVE, "transitions")
    often = [id for id in ids if len(_listener(kit).got(id)) != 1]
    kit.expect(not often, f"{often[0]} arrived {len(_listener(kit).got(often[0]))} times" if often else "")


@check("environment.feedback", "Explicit feedback on a turn becomes its next state at once: kind FEEDBACK, with its "
                               "content.", where=_NEXT, services=_ENVIRONMENT, needs=[Need.LISTEN],
       after=["environment.next-state"],
       level=Level.SHOULD, seconds=40)
async def feedback(kit: Context) -> None:
    turn = Material(kit).turn(kit.id(), kit.session())
    given = turn_pb2.Feedback(feedback_id=kit.id("feedback"), turn_id=turn.turn_id, session_id=turn.session_id,
                              score=-1.0, comment="Not a colour.", given_at=now(), client=turn.client)
    await accepted(kit, [*_events([turn]), environment_pb2.PolicyEvent(feedback=given)], size=1)
    await _listener(kit).wait([turn.turn_id], _ARRIVE, "transitions")
    state = _came(kit, turn).next_state
    kit.expect(state.kind == turn_pb2.NEXT_STATE_KIND_FEEDBACK, f"the kind is {_kind(state)}")
    kit.expect([(one.feedback_id, one.score, one.comment) for one in state.feedback]
               == [(given.feedback_id, -1.0, given.comment)], f"the feedback is {listed(state.feedback)}")


@check("environment.end-session", "EndSession returns the number of turns that received their next state.",
       where="environment.proto: EndSessionResponse", services=_ENVIRONMENT, needs=[Need.LISTEN],
       after=["onward.arrives"], seconds=40)
async def end_session(kit: Context) -> None:
    name = kit.session()
    turns = Material(kit).conversation(name, 2)
    await accepted(kit, _events(turns), size=1)
    answer = await kit.unary("EndSession", environment_pb2.EndSessionRequest(session_id=name))
    kit.expect(answer.closed_turns == 1, f"closed_turns is {answer.closed_turns}; 1 turn was open")
    await _listener(kit).wait([turn.turn_id for turn in turns], _ARRIVE, "transitions")
    answer = await kit.unary("EndSession", environment_pb2.EndSessionRequest(session_id=name))
    kit.expect(answer.closed_turns == 0, f"ended once more, closed_turns is {answer.closed_turns}")


@check("environment.sessions.kept", "Sessions survive a kill (SIGKILL): open turns still receive their next state.",
       where="design, Guarantees 2", services=_ENVIRONMENT, needs=[Need.LISTEN, Need.START],
       after=["environment.next-state"], seconds=120)
async def sessions_kept(kit: Context) -> None:
    name = kit.session()
    first, second = Material(kit).conversation(name, 2)
    await accepted(kit, _events([first]))
    await kit.restart()
    await accepted(kit, [*_events([second]), _end(kit, name)], size=1)
    await _listener(kit).wait([first.turn_id, second.turn_id], _ARRIVE, "transitions")
    state = _came(kit, first).next_state
    kit.expect(state.next_turn_id == second.turn_id, f"next_turn_id is {state.next_turn_id!r}, not {second.turn_id!r}")


@check("environment.interact", "Interact passes messages to the policy and streams its answer back: text, then the "
                               "turn.", where="environment.proto: Interact", services=_ENVIRONMENT, needs=[Need.LISTEN],
       after=["component.serves"])
async def interact(kit: Context) -> None:
    from openclaw_rl.conformance.environment_policy import Policy

    policy = Policy(kit)
    name = kit.session()
    call = kit.stream("Interact", timeout=kit.deadline)
    for number in (1, 2):
        request = environment_pb2.InteractRequest(
            messages=[turn_pb2.ChatMessage(role="user", content=f"Hello {number}")])
        if number == 1:
            request.turn.session_id = name
        await call.write(request)
        text, turn = "", None
        while turn is None:
            try:
                answer = await call.read()
            except grpc.aio.AioRpcError as error:
                kit.skip_unimplemented("Interact", error)
                if not policy.requests and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL,
                                                            grpc.StatusCode.FAILED_PRECONDITION):
                    kit.skip("its policy server is not the kit: configure it with the address of --listen")
                raise
            kit.expect(answer is not grpc.aio.EOF, f"the stream ended behind {text!r}, without a turn")
            if answer.WhichOneof("event") == "content":
                text += answer.content
            else:
                turn = answer.turn
        asked = policy.requests[-1]
        kit.expect(asked.turn.session_id == name, f"the policy was asked for session {asked.turn.session_id!r}")
        kit.expect([one.content for one in asked.messages if one.role == "user"] == [
            f"Hello {i + 1}" for i in range(number)], "the policy was asked "
                   f"{listed(one.content for one in asked.messages)}")
        kit.expect(text == policy.answer, f"the text is {text!r}; the policy said {policy.answer!r}")
        kit.expect(turn.response.content == policy.answer and turn.turn_id == policy.turn_ids[-1],
                   f"the turn is {turn.turn_id!r} with the response {turn.response.content!r}")
    await call.done_writing()


def _listener(kit: Context) -> Listener:
    assert kit.listener is not None
    return kit.listener


def _came(kit: Context, turn: turn_pb2.Turn) -> turn_pb2.Transition:
    arrived: turn_pb2.Transition = _listener(kit).got(turn.turn_id)[0].message
    return arrived


def _kind(state: turn_pb2.NextState) -> str:
    return turn_pb2.NextStateKind.Name(state.kind)[16:]
