"""Checks of errors: status code, ErrorInfo, name of the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import Message

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import check
from openclaw_rl.conformance.refusal import Refusal, refusal
from openclaw_rl.rpc.errors import DOMAIN
from openclaw_rl.v1 import component_pb2, environment_pb2, judge_pb2, trainer_pb2

_INVALID, _NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
_WHERE = "rpc/errors.py: the error catalogue; design: errors are google.rpc.Status with details"


@dataclass(frozen=True)
class Provocation:
    """A request that a server must refuse.

    Attributes:
        method: an RPC with one request and one answer.
        request: makes the request.
        code: that the refusal must have.
        fields: any of these, or a field of theirs, must be named by a violation; none for a code that has no fields.
        what: the request in words.
    """

    method: str
    request: Callable[[Context], Message]
    code: grpc.StatusCode
    what: str
    fields: tuple[str, ...] = field(default=())


#: By service. Those of every component are under "".
PROVOCATIONS: dict[str, list[Provocation]] = {
    "": [
        Provocation("ComponentService/Forget", lambda kit: component_pb2.ForgetRequest(), _INVALID,
                    "Forget without a session", ("session_id",)),
    ],
    "environment": [
        Provocation("GetSession", lambda kit: environment_pb2.GetSessionRequest(), _INVALID,
                    "GetSession without a session", ("session_id",)),
        Provocation("GetSession", lambda kit: environment_pb2.GetSessionRequest(session_id=kit.session()), _NOT_FOUND,
                    "GetSession of an unknown session"),
        Provocation("EndSession", lambda kit: environment_pb2.EndSessionRequest(), _INVALID,
                    "EndSession without a session", ("session_id",)),
        Provocation("EndSession", lambda kit: environment_pb2.EndSessionRequest(session_id=kit.session()), _NOT_FOUND,
                    "EndSession of an unknown session"),
        Provocation("ListTurns", lambda kit: environment_pb2.ListTurnsRequest(page_size=1001), _INVALID,
                    "ListTurns with a page of 1001", ("page_size",)),
        Provocation("ListTurns", lambda kit: environment_pb2.ListTurnsRequest(turn_ids=_ids(1001)), _INVALID,
                    "ListTurns of 1001 turns", ("turn_ids",)),
        Provocation("ListEpisodes", lambda kit: environment_pb2.ListEpisodesRequest(page_size=1001), _INVALID,
                    "ListEpisodes with a page of 1001", ("page_size",)),
        Provocation("Acquire", lambda kit: environment_pb2.AcquireRequest(lease_id="", type="conformance-none"),
                    _INVALID, "Acquire without a lease id", ("lease_id",)),
        Provocation("Acquire", lambda kit: environment_pb2.AcquireRequest(lease_id=kit.id("lease"),
                                                                          type="conformance-none"),
                    _NOT_FOUND, "Acquire of an unknown environment"),
        Provocation("Renew", lambda kit: environment_pb2.RenewRequest(lease_id=kit.id("lease")), _NOT_FOUND,
                    "Renew of an unknown lease"),
        Provocation("Step", lambda kit: environment_pb2.StepRequest(
            lease_id=kit.id("lease"), step=1, action_json='{"name": "a", "arguments": {}}'), _NOT_FOUND,
                    "Step of an unknown lease"),
        Provocation("Reset", lambda kit: environment_pb2.ResetRequest(lease_id=kit.id("lease")), _NOT_FOUND,
                    "Reset of an unknown lease"),
        Provocation("Evaluate", lambda kit: environment_pb2.EvaluateRequest(lease_id=kit.id("lease")), _NOT_FOUND,
                    "Evaluate of an unknown lease"),
    ],
    "judge": [
        Provocation("Judge", lambda kit: judge_pb2.JudgeRequest(), _INVALID, "Judge of nothing", ("transition",)),
        Provocation("ListJudgements", lambda kit: judge_pb2.ListJudgementsRequest(turn_ids=_ids(1001)), _INVALID,
                    "ListJudgements of 1001 turns", ("turn_ids",)),
    ],
    "trainer": [
        Provocation("ListSamples", lambda kit: trainer_pb2.ListSamplesRequest(turn_ids=_ids(1001)), _INVALID,
                    "ListSamples of 1001 turns", ("turn_ids",)),
        Provocation("GetVersion", lambda kit: trainer_pb2.GetVersionRequest(version=2**40), _NOT_FOUND,
                    "GetVersion of a version that never was"),
    ],
}


@dataclass
class _Answer:
    provocation: Provocation
    refused: Refusal | None
    shown: str = ""


@check("component.errors.code", "Invalid input is rejected with the code of the catalogue: INVALID_ARGUMENT, or "
                                "NOT_FOUND for missing objects.", where=_WHERE)
async def errors_code(kit: Context) -> None:
    wrong = []
    for answer in await _answers(kit):
        wanted = answer.provocation.code
        if answer.refused is None:
            wrong.append(f"{answer.provocation.what} succeeded ({answer.shown})")
        elif answer.refused.code is not wanted:
            wrong.append(f"{answer.provocation.what} was answered {answer.refused}, not {wanted.name}")
    kit.expect(not wrong, listed(wrong, 4))


@check("component.errors.details", "Every error has a google.rpc.Status with an ErrorInfo: domain \"openclaw-rl\" and "
       "a reason.", where=_WHERE)
async def errors_details(kit: Context) -> None:
    without = [f"{answer.provocation.what} ({answer.refused.code.name}"
               + (f", domain {answer.refused.domain!r})" if answer.refused.reason else ")")
               for answer in await _answers(kit) if answer.refused is not None and not answer.refused.ours]
    kit.expect(not without, f"no ErrorInfo of the domain {DOMAIN}: {listed(without, 4)}")


@check("component.errors.fields", "INVALID_ARGUMENT comes with a BadRequest that names the field.", where=_WHERE,
       after=["component.errors.details"])
async def errors_fields(kit: Context) -> None:
    wrong = []
    for answer in await _answers(kit):
        wanted, refused = answer.provocation.fields, answer.refused
        if wanted and refused is not None and not any(_names(found, one) for found in refused.violations
                                                      for one in wanted):
            wrong.append(f"{answer.provocation.what}: {' or '.join(wanted)} is not named"
                         + (f" (but {listed(refused.violations)})" if refused.violations else ""))
    kit.expect(not wrong, listed(wrong, 4))


@check("component.errors.message", "An error has a human-readable message.", where=_WHERE)
async def errors_message(kit: Context) -> None:
    empty = [answer.provocation.what for answer in await _answers(kit)
             if answer.refused is not None and len(answer.refused.message.strip()) < 5]
    kit.expect(not empty, f"no message: {listed(empty)}")


async def _answers(kit: Context) -> list[_Answer]:
    """What the server says to each provocation, asked once. What it does not implement is left out, if it says so
    properly."""
    if "provoked" in kit.memo:
        return kit.memo["provoked"]  # type: ignore[no-any-return]
    answers = []
    for provocation in (*PROVOCATIONS[""], *PROVOCATIONS.get(kit.service.name, ())):
        try:
            shown = str(await kit.unary(provocation.method, provocation.request(kit)))
            answers.append(_Answer(provocation, None, shown.strip().replace("\n", " ")[:80] or "an empty answer"))
        except grpc.aio.AioRpcError as error:
            refused = refusal(error)
            if refused.code is grpc.StatusCode.UNIMPLEMENTED and refused.ours:
                continue
            answers.append(_Answer(provocation, refused))
    kit.memo["provoked"] = answers
    return answers


def _names(found: str, wanted: str) -> bool:
    """Whether a violation's field is the one that is meant, or one of its own fields; in any spelling."""
    plain = [text.replace("_", "").lower() for text in (found, wanted)]
    return plain[1] in plain[0].replace("[", ".").split(".")


def _ids(count: int) -> list[str]:
    return [f"conformance-{i}" for i in range(count)]
