"""Checks of a judge's votes, wherever they are reported."""

from __future__ import annotations

from typing import Any

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Level, Need, check
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.ring_stream import accepted
from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import judge_pb2, turn_pb2

_JUDGEMENT = "turn.proto: Judgement, Vote"
_JUDGE = ["judge"]
#: Seconds for a judgement; a judge may have to ask a model.
_JUDGED = 30.0


def _transition(kit: Context, text: str = "And a shape.", feedback: float | None = None) -> turn_pb2.Transition:
    """One whose next state is what the user said, or feedback of this score."""
    material = Material(kit)
    transition = material.transition(material.turn(kit.id(), kit.session()))
    transition.next_state.messages[0].content = text
    if feedback is not None:
        transition.next_state.kind = turn_pb2.NEXT_STATE_KIND_FEEDBACK
        transition.next_state.feedback.append(turn_pb2.Feedback(
            feedback_id=kit.id("feedback"), turn_id=transition.turn.turn_id, session_id=transition.turn.session_id,
            score=feedback, given_at=now(), client="conformance"))
    return transition


def well_formed(kit: Context, judgement: turn_pb2.Judgement, turn_id: str) -> None:
    """Raise Failed unless a judgement is one."""
    kit.expect(judgement.turn_id == turn_id, f"turn_id is {judgement.turn_id!r}, not {turn_id!r}")
    kit.expect(judgement.votes, "there is no vote")
    kit.expect(judgement.HasField("judged_at"), "judged_at is not set")
    good = [vote for vote in judgement.votes if not vote.error]
    for vote in judgement.votes:
        kit.expect(vote.judge or vote.error, "a vote names no judge")
        kit.expect(vote.error or vote.score in (1, 0, -1), f"the vote of {vote.judge} has the score {vote.score}")
        kit.expect(vote.duration_ms >= 0, f"the vote of {vote.judge} took {vote.duration_ms} ms")
    kit.expect(judgement.failed == (not good), f"failed is {judgement.failed}, and {len(good)} of "
               f"{len(judgement.votes)} votes succeeded")
    if good:
        counted = [vote for vote in good if vote.certain] or good
        total = sum((vote.score > 0) - (vote.score < 0) for vote in counted)
        votes = {score: sum(vote.score == score for vote in counted) for score in (1, 0, -1)}
        best = [score for score, count in votes.items() if count == max(votes.values())]
        allowed = {best[0]} if len(best) == 1 else {0}
        kit.expect(judgement.score in allowed, f"score is {judgement.score}, and the votes that count are "
                   f"{listed(vote.score for vote in counted)} (sum {total}); their majority is {min(allowed)}")


@check("judge.judge", "Judge returns votes with scores +1, 0 or -1 and their majority; a tie is 0, and failed means "
                      "that no vote succeeded.", where=_JUDGEMENT, services=_JUDGE, seconds=60)
async def judge(kit: Context) -> None:
    for text in ("And a shape.", "No, that is wrong: I asked for a shape.", "Thanks, that is exactly right!"):
        transition = _transition(kit, text)
        answer = await kit.unary("Judge", judge_pb2.JudgeRequest(transition=transition), timeout=_JUDGED)
        well_formed(kit, answer.judgement, transition.turn.turn_id)


@check("judge.judge.minimal", "Judge requires only the messages and response of a turn.", where="judge.proto: "
       "JudgeRequest.transition", services=_JUDGE, after=["judge.judge"], seconds=60)
async def judge_minimal(kit: Context) -> None:
    transition = turn_pb2.Transition(
        turn=turn_pb2.Turn(messages=[turn_pb2.ChatMessage(role="user", content="Name a colour.")],
                           response=turn_pb2.ChatMessage(role="assistant", content="Blue.")),
        next_state=turn_pb2.NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED,
                                      messages=[turn_pb2.ChatMessage(role="user", content="And a shape.")]))
    answer = await kit.unary("Judge", judge_pb2.JudgeRequest(transition=transition), timeout=_JUDGED)
    well_formed(kit, answer.judgement, "")


@check("judge.judge.forgets", "Judge stores nothing of its requests.", where="judge.proto: Judge", services=_JUDGE,
       after=["judge.judge"], seconds=60)
async def judge_forgets(kit: Context) -> None:
    transition = _transition(kit)
    await kit.unary("Judge", judge_pb2.JudgeRequest(transition=transition), timeout=_JUDGED)
    found = await kit.unary("ListJudgements", judge_pb2.ListJudgementsRequest(turn_ids=[transition.turn.turn_id]))
    kit.expect(not found.judgements, "ListJudgements tells a judgement of it")


@check("judge.feedback", "Explicit feedback decides: thumbs-down is -1, thumbs-up +1.",
       where="design, Judge: a rule that is certain outranks a model", services=_JUDGE, level=Level.SHOULD,
       after=["judge.judge"], seconds=60)
async def feedback(kit: Context) -> None:
    for given in (-1.0, 1.0):
        answer = await kit.unary("Judge", judge_pb2.JudgeRequest(transition=_transition(kit, feedback=given)),
                                 timeout=_JUDGED)
        kit.expect(answer.judgement.score == given, f"feedback of {given:+g} is judged {answer.judgement.score:+d}")


@check("judge.list", "ListJudgements returns judgements of transitions from the ring in the requested order, omitting "
                     "those not judged.", where="judge.proto: ListJudgements", services=_JUDGE,
       after=["ring.acks.accepted"], seconds=60)
async def list_judgements(kit: Context) -> None:
    transitions = [_transition(kit) for _ in range(3)]
    await accepted(kit, transitions)
    ids = [transition.turn.turn_id for transition in reversed(transitions)]
    found = await _judged(kit, [ids[0], kit.id("unknown"), *ids[1:]], len(ids))
    kit.expect([one.turn_id for one in found] == ids, f"asked for {listed(ids)}; told "
               f"{listed(one.turn_id for one in found)}")
    for one in found:
        well_formed(kit, one, one.turn_id)


@check("judge.watch", "WatchJudgements reports each judgement of its session as it is made, with the session's id.",
       where="judge.proto: WatchJudgements", services=_JUDGE, after=["judge.list"], seconds=60)
async def watch(kit: Context) -> None:
    mine, other = _transition(kit), _transition(kit)
    session = mine.turn.session_id
    call = kit.stream("WatchJudgements", judge_pb2.WatchJudgementsRequest(session_id=session))
    every = kit.stream("WatchJudgements", judge_pb2.WatchJudgementsRequest())
    for one in (call, every):
        await kit.within(one.initial_metadata(), 3, "no headers within 3 s: nobody knows when the watch has begun")
    await accepted(kit, [other, mine])
    found = await kit.within(call.read(), _JUDGED, f"nothing was told within {_JUDGED:g} s")
    kit.expect(found is not grpc.aio.EOF, "the stream ended")
    kit.expect(found.session_id == session, f"session_id is {found.session_id!r}, not {session!r}")
    well_formed(kit, found.judgement, mine.turn.turn_id)
    told: set[str] = set()
    while not {mine.turn.turn_id, other.turn.turn_id} <= told:
        answer = await kit.within(every.read(), _JUDGED, f"the watch of all sessions told {listed(told)} only")
        told.add(answer.judgement.turn_id)


@check("judge.sample", "The sample sent on has the judgement that ListJudgements returns.",
       where="turn.proto: Sample", services=_JUDGE, needs=[Need.LISTEN], after=["onward.arrives", "judge.list"],
       seconds=60)
async def sample(kit: Context) -> None:
    assert kit.listener is not None
    transition = _transition(kit)
    id = transition.turn.turn_id
    await accepted(kit, [transition])
    await kit.listener.wait([id], _JUDGED, "samples")
    came = kit.listener.got(id)[0].message.judgement
    kit.expect(came.failed or came.votes, "the sample has no judgement")
    well_formed(kit, came, id)
    found = (await _judged(kit, [id], 1))[0]
    kit.expect((came.score, came.failed, came.hint, len(came.votes)) == (found.score, found.failed, found.hint,
                                                                        len(found.votes)),
               f"the sample has score {came.score}, {len(came.votes)} votes; ListJudgements tells {found.score}, "
               f"{len(found.votes)}")
    state = kit.listener.got(id)[0].message.transition.next_state
    kit.expect(state == transition.next_state, "the sample's next state is not the transition's")


async def _judged(kit: Context, ids: list[str], count: int) -> list[turn_pb2.Judgement]:
    """Wait until ListJudgements tells so many."""
    import asyncio
    import time

    end = time.monotonic() + _JUDGED
    while True:
        answer: Any = await kit.unary("ListJudgements", judge_pb2.ListJudgementsRequest(turn_ids=ids))
        if len(answer.judgements) >= count:
            return list(answer.judgements)
        kit.expect(time.monotonic() < end, f"{len(answer.judgements)} of {count} judgements after {_JUDGED:g} s")
        await asyncio.sleep(0.05)
