"""Sequential run of checks against one server."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Check, Failed, Level, Need, Outcome, Skipped
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.rpc.errors import handshake_failure

#: How one ended that others stand on.
_ENDED = {Outcome.FAILED: "which failed", Outcome.SKIPPED: "which was skipped", Outcome.ERROR: "where the kit failed"}
#: Seconds within which a server that runs is to answer the first call.
_FIRST_SECONDS = 10.0


@dataclass(frozen=True)
class Result:
    """How one check ended.

    Attributes:
        seen: what was seen (failed), why it was not asked (skipped), or the kit's own fault (error); "" when it passed.
        seconds: that it took.
    """

    check: Check
    outcome: Outcome
    seen: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """A run of the kit.

    Attributes:
        service, address: what was asked, and where.
        server: name and version that the server gives itself; "" when it tells none.
        could_not: why the server could not be asked at all; "" when it could.
    """

    service: str
    address: str
    server: str = ""
    could_not: str = ""
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    def of(self, outcome: Outcome, level: Level | None = None) -> list[Result]:
        """Return the results with an outcome."""
        return [one for one in self.results if one.outcome is outcome and (level is None or one.check.level is level)]

    @property
    def conforms(self) -> bool:
        """Whether all mandatory checks that could run have passed."""
        return not self.could_not and not self.of(Outcome.FAILED, Level.MUST) and not self.of(Outcome.ERROR)

    @property
    def exit_code(self) -> int:
        """0 conforms, 1 does not conform, 2 could not be checked."""
        if self.could_not or (self.of(Outcome.ERROR) and not self.of(Outcome.FAILED, Level.MUST)):
            return 2
        return 0 if self.conforms else 1


def chosen(checks: Sequence[Check], patterns: Sequence[str]) -> list[Check]:
    """Select checks whose ids match a pattern (`ring.*`; a plain word matches anywhere), and the checks they depend
    on."""
    if not patterns:
        return list(checks)
    by_id = {one.id: one for one in checks}
    wanted: set[str] = set()

    def take(one: Check) -> None:
        if one.id not in wanted:
            wanted.add(one.id)
            for id in one.after:
                if id in by_id:
                    take(by_id[id])

    for one in checks:
        if any(fnmatch.fnmatchcase(one.id, pattern if set(pattern) & set("*?[") else f"*{pattern}*")
               for pattern in patterns):
            take(one)
    return [one for one in checks if one.id in wanted]


async def run(kit: Context, checks: Sequence[Check], *, drain: bool = False,
              on_result: Callable[[Result], None] = lambda result: None) -> Report:
    """Run checks one after another.

    Args:
        drain: the server may be ended although the kit has not started it.
        on_result: called with each result.
    """
    began = time.monotonic()
    report = Report(kit.service.name, kit.address)
    try:
        if kit.process is not None:
            await kit.ready()
    except Failed as seen:
        report.could_not = "" if kit.process and kit.process.running else str(seen)  # if it runs, the checks tell
    report.could_not = report.could_not or await reach(kit)
    if not report.could_not:
        with contextlib.suppress(grpc.aio.AioRpcError):  # the checks tell
            await kit.join(kit.mesh or (await kit.status()).mesh_id)
    outcomes: dict[str, Outcome] = {}
    barred = ""  # why nothing else is asked
    for one in checks if not report.could_not else ():
        why = _missing(kit, one, drain) or barred or _unmet(one, outcomes)
        result = Result(one, Outcome.SKIPPED, why) if why else await _run_one(kit, one)
        outcomes[one.id] = result.outcome
        report.results.append(result)
        on_result(result)
        if result.outcome is Outcome.FAILED and one.gate:
            barred = f"{one.id} failed"
        if result.outcome in (Outcome.FAILED, Outcome.ERROR) and not one.last and (lost := await _revive(kit)):
            barred = lost
    status = kit.memo.get("status")
    if status is not None:
        report.server = " ".join(filter(None, (status.name, status.package_version)))
    report.seconds = time.monotonic() - began
    return report


async def reach(kit: Context) -> str:
    """Return why the server cannot be reached; "" if it can."""
    try:
        await kit.unary("ComponentService/GetStatus", timeout=max(_FIRST_SECONDS, kit.deadline))
    except grpc.aio.AioRpcError as error:
        text = error.details() or ""
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return (f"{kit.address} rejects this caller ({text}): pass the operator's certificate (--certs) or a key "
                    "with sufficient scope (--key)")
        if error.code() is not grpc.StatusCode.UNAVAILABLE and "HTTP" not in text and "http2" not in text.lower():
            return ""  # it answers, if with an error: the checks tell
        if "HTTP" in text or "http2" in text.lower() or "Trying to connect an http1.x server" in text:
            return f"{kit.address} speaks HTTP, not gRPC ({text}): is it the port of the gRPC server?"
        why = handshake_failure(text) or text
        hint = "; use --certs DIR for TLS, without it the kit uses plain text" if "TLS" in why else ""
        return f"cannot reach {kit.address}: {why}{hint}"
    return ""


async def _run_one(kit: Context, one: Check) -> Result:
    began = time.monotonic()

    def result(outcome: Outcome, seen: str = "") -> Result:
        return Result(one, outcome, seen, time.monotonic() - began)

    try:
        async with asyncio.timeout(one.seconds):
            await one.run(kit)
        return result(Outcome.PASSED)
    except Skipped as why:
        return result(Outcome.SKIPPED, str(why))
    except Failed as seen:
        return result(Outcome.FAILED, str(seen))
    except TimeoutError:
        return result(Outcome.FAILED, f"not completed after {one.seconds:g} s ({_place()})")
    except grpc.aio.AioRpcError as error:
        return result(Outcome.FAILED, f"a call that should succeed failed with {refusal(error)}")
    except Exception as error:
        return result(Outcome.ERROR, f"kit error: {error!r} in {_place(error)}")
    finally:
        await kit.clean_up()


async def _revive(kit: Context) -> str:
    """Restart our own server after a failure if it is gone. Returns why no further check can run, or ""."""
    if not await reach(kit):
        return ""
    await kit.close()
    if kit.process is None:
        return f"the server at {kit.address} no longer responds" if await reach(kit) else ""
    try:
        await kit.restart()
    except Failed as seen:
        return str(seen)
    return ""


def _missing(kit: Context, one: Check, drain: bool) -> str:
    there = {Need.LISTEN: kit.listener is not None, Need.START: kit.process is not None,
             Need.DRAIN: drain or kit.process is not None, Need.CERTS: kit.secure and not kit.keyed,
             Need.WEIGHTS: kit.weights or kit.process is not None}
    lacking = [need.value for need in Need if need in one.needs and not there[need]]
    return f"needs {' and '.join(lacking)}" if lacking else ""


def _unmet(one: Check, outcomes: dict[str, Outcome]) -> str:
    unmet = [id for id in one.after if outcomes.get(id, Outcome.PASSED) is not Outcome.PASSED]
    return f"depends on {unmet[0]}, {_ENDED[outcomes[unmet[0]]]}" if unmet else ""


def _place(error: BaseException | None = None) -> str:
    """Return file and line of the check that raised last."""
    import sys

    frames = traceback.extract_tb((error or sys.exception() or Exception()).__traceback__)
    ours = [frame for frame in frames if "/conformance/" in frame.filename] or list(frames)
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else "the kit"
