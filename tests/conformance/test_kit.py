"""The kit's frame: its command, its reports, its exit codes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.conformance import junit
from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Check, Failed, Level, Need, Outcome, Skipped, all_checks, checks_of
from openclaw_rl.conformance.listener import Faults
from openclaw_rl.conformance.process import ServerProcess
from openclaw_rl.conformance.report import Printer, as_json
from openclaw_rl.conformance.runner import Report, Result, chosen, run
from openclaw_rl.conformance.services import SERVICES, find
from tests.conformance.harness import checks, failed, in_process
from tests.conformance.wrong.judge import Judge
from tests.support.ports import free_port
from tools.conformance.__main__ import main as tool


def _check(id: str, run_: object, **fields: object) -> Check:
    values: dict[str, object] = {"level": Level.MUST, "needs": frozenset(), "after": (), "seconds": 5.0, "gate": False,
                                 "last": False, **fields}
    return Check(id, f"It does {id}.", "here", run_, ("judge",), **values)  # type: ignore[arg-type]


async def _fine(kit: Context) -> None:
    pass


async def _bad(kit: Context) -> None:
    raise Failed("it did not")


async def _not_here(kit: Context) -> None:
    raise Skipped("not here")


async def _broken(kit: Context) -> None:
    raise KeyError("x")


async def _for_ever(kit: Context) -> None:
    await asyncio.sleep(60)


@pytest.fixture
def http1() -> Iterator[str]:
    """Address of a server that speaks HTTP/1."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _cli(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["conformance", *args], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


async def test_outcomes(tmp_path: Path) -> None:
    some = [_check("a.fine", _fine), _check("a.bad", _bad), _check("a.weak", _bad, level=Level.SHOULD),
            _check("a.not", _not_here), _check("a.broken", _broken), _check("a.long", _for_ever, seconds=0.05),
            _check("a.stands", _fine, after=("a.bad",)), _check("a.needs", _fine, needs=frozenset({Need.START}))]
    async with in_process(Judge, tmp_path) as kit:
        report = await run(kit, some)
    found = {one.check.id: (one.outcome, one.seen) for one in report.results}
    assert found["a.fine"] == (Outcome.PASSED, "")
    assert found["a.bad"] == (Outcome.FAILED, "it did not")
    assert found["a.not"] == (Outcome.SKIPPED, "not here")
    assert found["a.broken"][0] is Outcome.ERROR and "KeyError('x') in test_kit.py" in found["a.broken"][1]
    assert found["a.long"][0] is Outcome.FAILED and "not completed after 0.05 s" in found["a.long"][1]
    assert found["a.stands"] == (Outcome.SKIPPED, "depends on a.bad, which failed")
    assert found["a.needs"] == (Outcome.SKIPPED, "needs --start")
    assert not report.conforms and report.exit_code == 1


async def test_a_failed_gate_bars_the_rest(tmp_path: Path) -> None:
    async with in_process(Judge, tmp_path) as kit:
        report = await run(kit, [_check("a.gate", _bad, gate=True), _check("a.fine", _fine)])
    assert [one.outcome for one in report.results] == [Outcome.FAILED, Outcome.SKIPPED]
    assert report.results[1].seen == "a.gate failed"


async def test_another_service_at_the_address(tmp_path: Path) -> None:
    async with in_process(Judge, tmp_path) as kit:
        kit.service = SERVICES["trainer"]
        report = await run(kit, checks_of("trainer"))
    assert list(failed(report)) == ["component.serves"]
    assert failed(report)["component.serves"] == (
        "openclaw_rl.v1.TrainerService/SubmitSamples is UNIMPLEMENTED there; it says that it is 'prm_judge'")
    assert {one.outcome for one in report.results[1:]} == {Outcome.SKIPPED}


async def test_a_server_that_goes_away(tmp_path: Path) -> None:
    async with in_process(Judge, tmp_path) as kit:
        async def kills(kit: Context) -> None:
            kit.address = "127.0.0.1:1"
            await kit.close()
            raise Failed("it is gone")

        report = await run(kit, [_check("a.kills", kills), _check("a.fine", _fine)])
    assert report.results[1].outcome is Outcome.SKIPPED
    assert report.results[1].seen == "the server at 127.0.0.1:1 no longer responds"


def test_ids_and_sentences() -> None:
    for one in all_checks():
        assert one.obligation.endswith(".") and not one.obligation[0].islower(), one.id
        assert one.where and one.services, one.id
        ids = {other.id for service in one.services for other in checks_of(service)}
        assert set(one.after) <= ids, one.id
    order = [one.id for one in checks()]
    for one in checks():
        assert all(order.index(id) < order.index(one.id) for id in one.after), f"{one.id} runs before what it stands on"


def test_chosen_brings_what_it_stands_on() -> None:
    assert [one.id for one in chosen(checks(), ["ring.duplicate.within"])] == [
        "ring.acks", "ring.acks.accepted", "ring.duplicate", "ring.duplicate.within"]
    assert len(chosen(checks(), ["ring.*"])) > 20
    assert chosen(checks(), ["no.such.check"]) == []


@pytest.mark.parametrize("name", ["judge", "prm_judge", "JudgeService", "openclaw_rl.v1.JudgeService"])
def test_names_of_services(name: str) -> None:
    assert find(name) is SERVICES["judge"]


def test_reports(tmp_path: Path) -> None:
    report = Report("judge", "h:1", "prm_judge 1", results=[
        Result(_check("a.fine", _fine), Outcome.PASSED),
        Result(_check("a.bad", _bad), Outcome.FAILED, "it\x1b did not"),
        Result(_check("a.weak", _bad, level=Level.SHOULD), Outcome.FAILED, "hardly"),
        Result(_check("b.not", _fine), Outcome.SKIPPED, "needs --listen")])
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    printer = Printer(console)
    for one in report.results:
        printer.result(one)
    printer.summary(report)
    text = console.export_text()
    assert "It does a.bad." in text and "observed: it  did not" in text and "contract: here" in text
    assert "warning" in text and "needs --listen" in text and "\x1b" not in text
    assert text.strip().splitlines()[-1] == "h:1 (prm_judge 1) does not conform: judge"
    assert as_json(report)["checks"][1]["obligation"] == "It does a.bad."
    junit.write(report, tmp_path / "j.xml")
    suite = ET.parse(tmp_path / "j.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("4", "1", "1")
    assert suite[1][0].attrib["message"] == "It does a.bad."


def test_list_and_bad_options() -> None:
    code, text = _cli("judge", "--list")
    assert code == 0 and "ring.acks" in text and "trainer.fates" not in text
    code, text = _cli("environment", "--list", "--json")
    assert code == 0 and {one["id"] for one in json.loads(text)} >= {"environment.lease", "onward.order"}
    assert _cli("cook", "--address", "h:1")[0] == 2
    assert "must be HOST:PORT" in _cli("judge", "--address", "h")[1]
    assert "no check of judge matches" in _cli("judge", "--only", "nothing", "--address", "h:1")[1]
    assert "--address HOST:PORT" in _cli("judge")[1]


def test_what_could_not_be_asked(http1: str, tmp_path: Path) -> None:
    code, text = _cli("judge", "--address", http1, "--junit", str(tmp_path / "j.xml"))
    assert code == 2 and "HTTP" in text and "could not check" in text
    assert ET.parse(tmp_path / "j.xml").getroot().attrib["errors"] == "1"
    nobody = f"127.0.0.1:{free_port()}"
    code, text = _cli("judge", "--address", nobody)
    assert code == 2 and f"cannot reach {nobody}" in text
    code, text = _cli("judge", "--start", "/no/such/server {address}")
    assert code == 2 and "can't be started" in text
    code, text = _cli("judge", "--start", "sh -c 'echo no port; exit 5'")
    assert code == 2 and "ended with code 5: no port" in text


async def test_a_process_is_killed_and_started_again(tmp_path: Path) -> None:
    port = free_port()
    process = ServerProcess(f"python3 -u -m http.server {{port}} --bind 127.0.0.1 --directory {tmp_path}",
                            f"127.0.0.1:{port}", tmp_path / "data")
    await process.start()
    assert process.running
    await process.kill()
    assert process.exit_code == -9 and not process.running
    await process.start()
    await process.stop()
    assert process.exit_code == -15


def test_a_started_server_that_ends_is_told_at_once() -> None:
    began = time.monotonic()
    code, text = _cli("judge", "--start", f"{sys.executable} -c 'import socket, sys; "
                      's = socket.create_server(("127.0.0.1", int(sys.argv[1]))); s.accept(); s.accept(); '
                      'print("out of memory"); sys.exit(3)\' {port}')
    assert code == 2 and "the server has ended: out of memory" in text
    assert time.monotonic() - began < 30


async def test_a_started_server_may_be_slow_to_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(Judge, tmp_path) as kit:
        answers = iter([2, 2, 1])  # NOT_SERVING, NOT_SERVING, SERVING

        async def health(name: str = "", channel: object = None) -> int:
            return next(answers)

        monkeypatch.setattr(kit, "health", health)
        await kit.ready()
        assert next(answers, None) is None


def test_unknown_jobs_and_servers(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, said in ((["judge", "--jobs", "0"], "must be at least 1"), (["cook"], "'cook' is no server")):
        with pytest.raises(SystemExit):
            tool(wrong)
        assert said in capsys.readouterr().err


async def test_the_listener_cuts_and_refuses(tmp_path: Path) -> None:
    async with in_process(Judge, tmp_path) as kit:
        assert kit.listener is not None
        kit.listener.behave(Faults(refuse=lambda message: "no"))
        report = await run(kit, chosen(checks(), ["onward.unchanged"]))
        assert not failed(report)
        assert kit.listener.faults == Faults()  # well again behind a check


def test_the_readme_is_fresh() -> None:
    assert tool(["--check"]) == 0
