"""conformance: check a server against the contract."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json

if TYPE_CHECKING:
    from openclaw_rl.conformance.frame import Check
    from openclaw_rl.conformance.runner import Report
    from openclaw_rl.conformance.services import Service

_EPILOG = """Example: openclaw-rl conformance judge --address 127.0.0.1:50053\n
openclaw-rl conformance judge --start './judge_go --listen {address} --data {data} --trainer {listen}' --junit j.xml\n
openclaw-rl conformance environment --only 'ring.*' --address 10.0.0.7:50052 --certs ~/.openclaw-rl/certs"""

_SERVICES = "policy, environment, judge or trainer (or its component's name, such as prm_judge)"


@app.command(epilog=_EPILOG)
def conformance(
    service: Annotated[str, typer.Argument(help=f"What the server is: {_SERVICES}.")],
    address: Annotated[str | None, typer.Option("--address", "-a", help="HOST:PORT of the server; with --start, where "
                                                                        "it is to listen (default: any free port).",
                                                show_default=False)] = None,
    listen: Annotated[str | None, typer.Option(
        "--listen", help="HOST:PORT where the kit stands in for the server's downstream neighbours, to check what it "
                         "sends; the server must be configured with it. With --start and {listen} in the command: any "
                         "free port.",
        show_default=False)] = None,
    start: Annotated[str | None, typer.Option(
        "--start", help="Command that starts the server: the kit starts it, kills it, starts it again and stops it. "
                        "{address}, {port}, {data} (a folder for its files) and {listen} are substituted. No shell is "
                        "used.", show_default=False)] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Also drain the server at --address, which STOPS it.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="Also check the weight stream of a policy server: nearly "
                                                            "identical versions become active for moments, and the "
                                                            "original one is active again at the end. Implied by "
                                                            "--start.")] = False,
    certs: Annotated[Path | None, typer.Option("--certs", help="Use TLS, with ca.crt, operator.crt and operator.key of "
                                                               "this folder. The streams between components also need "
                                                               "the certificates of the server's neighbours.",
                                               show_default=False)] = None,
    key: Annotated[str | None, typer.Option("--key", help="Bearer key for a component's keys_port; --certs names the "
                                                          "folder with ca.crt.", envvar="OPENCLAW_RL_CONFORMANCE_KEY",
                                            show_default=False)] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="Timeout in seconds for ordinary unary calls.",
                                            min=0.5, max=600)] = 10.0,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only checks whose ids match, such as 'ring.*'; "
                                                                  "repeatable.", show_default=False)] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write a JUnit report.",
                                               show_default=False)] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the checks and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Check a server of any origin against the contract, from outside.

    Exit code: 0 conforms, 1 does not conform, 2 could not be checked. Safe on a live mesh: it leaves sessions named
    conformance-..., changes the policy's version only with --weights or --start, and stops or kills the server only
    with --start or --drain.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the report says what failed

    import asyncio

    from openclaw_rl.conformance import services
    from openclaw_rl.conformance.frame import checks_of
    from openclaw_rl.conformance.report import Printer
    from openclaw_rl.conformance.report import as_json as report_json
    from openclaw_rl.conformance.runner import chosen

    found = services.find(service)
    if found is None:
        raise typer.BadParameter(f"{service!r} is not a service: must be {_SERVICES}", param_hint="SERVICE")
    checks = chosen(checks_of(found.name), only or ())
    if not checks:
        raise typer.BadParameter(f"no check of {found.name} matches {', '.join(only or ())}; --list shows their ids",
                                 param_hint="--only")
    if list_only:
        _list(checks, as_json)
        return
    if address is None and start is None:
        raise typer.BadParameter("one of --address HOST:PORT or --start COMMAND is required",
                                 param_hint="--address")
    for name, value in (("--address", address), ("--listen", listen)):
        if value is not None and not (value.rpartition(":")[0] and value.rpartition(":")[2].isdecimal()):
            raise typer.BadParameter(f"{value!r} must be HOST:PORT", param_hint=name)
    if start is not None and "{listen}" in start and listen is None:
        listen = "127.0.0.1:0"
    printer = Printer(out)
    report = asyncio.run(_run(found, checks, address, listen, start, drain, weights, _credentials(certs, key), certs,
                              deadline, (lambda result: None) if as_json else printer.result))
    if junit is not None:
        from openclaw_rl.conformance.junit import write

        try:
            write(report, junit)
        except OSError as error:
            err.print(f"{junit} can't be written: {error.strerror}", highlight=False, markup=False)
            raise typer.Exit(2) from None
    if as_json:
        print_json(report_json(report))
    else:
        printer.summary(report)
    raise typer.Exit(report.exit_code)


async def _run(service: Service, checks: list[Check], address: str | None, listen: str | None, start: str | None,
               drain: bool, weights: bool, credentials: Any, certs: Path | None, deadline: float,
               on_result: Any) -> Report:
    from openclaw_rl.conformance.context import Context
    from openclaw_rl.conformance.frame import Failed
    from openclaw_rl.conformance.listener import Listener
    from openclaw_rl.conformance.process import ServerProcess
    from openclaw_rl.conformance.runner import Report, run

    with ExitStack() as stack:
        listener = process = None
        address = address or f"127.0.0.1:{_free_port()}"
        try:
            if listen is not None:
                listener = Listener(listen, _server_credentials(certs, service) if certs else None)
                await listener.start()
            if start is not None:
                data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openclaw-conformance-")))
                process = ServerProcess(start, address, data, listener.address if listener else "")
                await process.start()
            kit = Context(service, address, deadline=deadline, credentials=credentials, listener=listener,
                          process=process, certs=str(certs) if certs else None)
            kit.weights = weights
            try:
                return await run(kit, checks, drain=drain, on_result=on_result)
            finally:
                await kit.close()
        except (Failed, OSError) as error:
            return Report(service.name, address, could_not=str(error))
        finally:
            if process is not None:
                await process.stop()
            if listener is not None:
                await listener.stop()


def _credentials(certs: Path | None, key: str | None) -> Any:
    from openclaw_rl.config import ConfigError
    from openclaw_rl.rpc.auth import tls

    try:
        if key is not None:
            return tls.OutsideCredentials(key, (certs / "ca.crt").read_bytes() if certs else None)
        return tls.Credentials(certs, "operator") if certs is not None else None
    except (ConfigError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--certs") from None


def _server_credentials(certs: Path, service: Service) -> Any:
    """Of the kit in the place of the next components: whoever connects says by the name that it expects which of them
    it means."""
    import grpc

    from openclaw_rl.config import ConfigError
    from openclaw_rl.conformance.services import SERVICES
    from openclaw_rl.rpc.auth import tls

    needed = SERVICES[service.next].component
    pairs = []
    for role in (needed, *(one.component for one in SERVICES.values() if one.component != needed)):
        try:
            material = tls.Credentials(certs, role).material()
        except ConfigError as error:
            if role == needed:
                raise OSError(f"--listen with TLS needs the certificate of {role}, whose place the kit takes: {error}"
                              ) from None
            continue
        pairs.append((material.key, material.certificate))
    return grpc.ssl_server_credentials(pairs, material.authority, require_client_auth=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _list(checks: list[Check], as_json: bool) -> None:
    from openclaw_rl.conformance.report import about

    if as_json:
        print_json([about(one) for one in checks])
        return
    for one in checks:
        needs = f" (needs {', '.join(sorted(need.value for need in one.needs))})" if one.needs else ""
        out.print(f"{one.id:<34} {one.obligation}{needs}", soft_wrap=True, highlight=False, markup=False)
