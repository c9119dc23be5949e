"""init, local-start, status, stop-all."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import clipped, err, out, print_json
from openclaw_rl.runtime.home import Home, write_atomically
from openclaw_rl.runtime.private import NotPrivate

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from openclaw_rl.config import Config

_COLOURS = {"RUNNING": "green", "STARTING": "yellow", "DEGRADED": "yellow", "STOPPED": "dim", "FAILED": "red"}


@app.command(epilog="Example: openclaw-rl init && openclaw-rl local-start")
def init(force: Annotated[bool, typer.Option("--force",
                                             help="Overwrite an existing configuration file.")] = False) -> None:
    """Write a commented configuration file with all defaults, and create certificates.

    Existing certificates are kept, even with --force.
    """
    from openclaw_rl.cli.certs import make_certificates
    from openclaw_rl.cli.template import commented_config

    home = Home.default()
    try:
        home.create()
        if make_certificates(home):
            out.print(f"created certificates in {home.certs}; they are used when the mesh listens on a network",
                      soft_wrap=True)
        if home.config_file.exists() and not force:
            err.print(f"{home.config_file} already exists; use --force to overwrite it", soft_wrap=True)
            raise typer.Exit(1)
        write_atomically(home.config_file, commented_config().encode())  # 0600: it may come to hold keys
    except NotPrivate as error:
        err.print(f"{home.root} can't be used: {error.strerror}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from None
    except OSError as error:
        err.print(f"{home.root} can't be written: {error.strerror}; set OPENCLAW_RL_HOME to a folder that can",
                  soft_wrap=True)
        raise typer.Exit(1) from None
    out.print(f"wrote {home.config_file}; `openclaw-rl local-start` uses it", soft_wrap=True)


@app.command("local-start", epilog="Example: openclaw-rl local-start --config local_config.yaml; "
             "openclaw-rl local-start --model Qwen/Qwen2.5-0.5B-Instruct --port 30001")
def local_start(
    file: Annotated[Path | None, typer.Argument(help="Same as --config.", show_default=False)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file; default: config.yaml in "
                                                                       "the home folder, else the built-in defaults.",
                                                show_default=False)] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", show_default=False, help=(
        "Model to serve and train, as components.policy_server.model: a folder, a Hugging Face id, or "
        "openai:NAME."
        ))] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, show_default=False, help=(
        "Port of the OpenAI-compatible API, as components.policy_server.port; 0: any free port."))] = None,
    judge: Annotated[str | None, typer.Option("--judge", show_default=False, help=(
        "Judge, as components.prm_judge.judge."))] = None,
    folder: Annotated[Path | None, typer.Option("--home", show_default=False, help=(
        "Home folder of the mesh, as OPENCLAW_RL_HOME, which other commands need then, too."))] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without any progress after which the start is given up.",
                                           min=1)] = 180,
    jaeger: Annotated[bool, typer.Option("--jaeger", help="Also start Jaeger and export spans to it; without it spans "
                                                          "are still stored for `openclaw-rl trace`.")] = False,
) -> None:
    """Start all four components on this machine and wait until they are RUNNING.

    Components that run already are left alone, so a second call is safe: it starts what is missing and exits with 0.
    If one can't run, or on Ctrl-C, those that were started are stopped again. Options take precedence over the
    configuration file.
    """
    from openclaw_rl.config import changed, load_config
    from openclaw_rl.launch import checks, start

    if folder is not None:
        os.environ["OPENCLAW_RL_HOME"] = str(folder.expanduser().absolute())
    home = Home.default()
    path = config or file or (home.config_file if home.config_file.exists() else None)
    err.print(f"mesh in {home.root}, configuration {path or 'built in'}", soft_wrap=True, highlight=False)
    given = {"components.policy_server.model": model, "components.policy_server.port": port,
             "components.prm_judge.judge": judge}
    loaded = changed(load_config(path), {key: value for key, value in given.items() if value is not None})
    with _interrupted_by_signals():
        mesh = start.local_start(home, loaded, err, timeout, jaeger)
    missing = [c for c in mesh.components if c.state != "RUNNING"]
    for component in mesh.components:
        if component in missing:
            err.print(f"[yellow]{component.name}: {component.state}[/] {escape(component.detail)}", soft_wrap=True,
                      highlight=False)
        elif not component.ours:
            err.print(f"[green]✓[/] {component.name:<14} {component.address}  [dim]already running[/]", highlight=False)
    _say_what_next(home, loaded)
    if folder is not None:
        out.print(f"other commands use this mesh with: export OPENCLAW_RL_HOME={shlex.quote(str(home.root))}",
                  soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(0 if all(c.name not in checks.started_here(loaded) for c in missing) else 1)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP are as Ctrl-C, unless they are ignored (nohup)."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _say_what_next(home: Home, config: Config) -> None:
    from openclaw_rl.client.openai_address import http_address
    from openclaw_rl.rpc.auth.keys.ring import key_path
    from openclaw_rl.runtime.identity import certificates_folder

    if address := http_address(home):
        out.print("try it:", highlight=False)
        needs = ""
        if address.startswith("https") and config.security.http_certificate is None:
            needs = f"--cacert {certificates_folder(config, home) / 'ca.crt'} "
        if config.components.policy_server.api_keys or key_path(config, home).exists():
            needs += '-H "Authorization: Bearer $OPENCLAW_RL_API_KEY" '
        out.print(f"  curl -N {address}/v1/chat/completions {needs}-H 'Content-Type: application/json' -d "
                  """'{"messages": [{"role": "user", "content": "What is a heron?"}], "stream": true}'""",
                  soft_wrap=True, highlight=False, markup=False)
    out.print(f"logs: {home.logs}\nnext: openclaw-rl chat | status | turns | versions | logs -f | stop-all",
              soft_wrap=True, highlight=False, markup=False)


@app.command(epilog="Example: openclaw-rl status --json | jq .policy_version")
def status(as_json: Json = False) -> None:
    """Show the state of all components. Exits with 0 only if all four are RUNNING."""
    from openclaw_rl.launch.status import report

    mesh = report(Home.default())
    if as_json:
        print_json(mesh.json())
    else:
        table = Table(box=None, pad_edge=False)
        somewhere = any(c.host for c in mesh.components) and bool(mesh.hosts)
        for column in ("component", "state", *(["host"] if somewhere else []), "pid", "address"):
            table.add_column(column, no_wrap=True)
        table.add_column("detail", overflow="fold")
        for c in mesh.components:
            detail = [c.note] if c.note else []
            if c.status and c.status.http_address:
                detail.insert(0, f"{c.status.http_address}/v1")
            table.add_row(c.name, f"[{_COLOURS[c.state]}]{c.state}[/]", *([c.host] if somewhere else []),
                          str(c.pid or ""), c.address or "", clipped("; ".join(detail), 400))
        out.print(table)
        for host, entry in mesh.hosts.items():
            if entry["state"] != "up":
                out.print(f"[red]host {host}[/] is {entry['state']} since {entry['since']} {escape(entry['detail'])}",
                          soft_wrap=True, highlight=False)
        for problem in mesh.problems:
            out.print(f"[yellow]mesh[/]: {escape(problem)}", soft_wrap=True, highlight=False)
        for c in mesh.components:
            for alarm in c.alarms:
                out.print(f"[yellow]{c.name}[/]: {escape(alarm.message)} [dim]({_since(alarm.since)}, {alarm.name})[/]",
                          soft_wrap=True, highlight=False)
        if all(c.state == "STOPPED" and not c.detail for c in mesh.components):
            out.print(f"no mesh is running in {Home.default().root}: `openclaw-rl local-start` starts one; set "
                      "OPENCLAW_RL_HOME to use a mesh in another folder", soft_wrap=True, highlight=False, markup=False)
        facts = mesh.json()
        turns, samples = facts["turns"], facts["samples"]
        dropped = ", ".join(f"{n} {reason}" for reason, n in samples["dropped"].items()) or "none"
        lines = (f"policy version {_known(mesh.policy_version)}",
                 "turns: " + ", ".join(f"{_known(n)} {name}" for name, n in turns.items()),
                 "samples: " + ", ".join(f"{_known(samples[k])} {k}" for k in ("accepted", "trained", "pending"))
                 + f"; dropped: {dropped}",
                 "samples in the last hour: " + ", ".join(
                     f"{_known(None if n is None else round(n))} {name}" for name, n in samples["per_hour"].items()))
        out.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)
        for c in mesh.components:
            for box in c.status.outboxes if c.status else ():
                if box.pending or box.last_error:
                    out.print(f"{c.name} -> {box.name}: {box.pending} wait ({box.pending_bytes} bytes) "
                              f"{box.last_error}", soft_wrap=True, highlight=False, markup=False)
        if mesh.jaeger:
            out.print(f"jaeger {mesh.jaeger['state']}: {mesh.jaeger['address']}", soft_wrap=True, highlight=False,
                      markup=False)
    raise typer.Exit(0 if mesh.all_running else 1)


def _since(began: Timestamp) -> str:
    from openclaw_rl.runtime.alarms import duration

    return f"for {duration(max(0.0, time.time() - began.ToNanoseconds() / 1e9))}"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


@app.command("stop-all", epilog="Example: openclaw-rl stop-all")
def stop_all(
    forget: Annotated[bool, typer.Option("--forget-unreachable", help="For a mesh on several hosts: skip unreachable "
                                         "hosts and forget the mesh. Processes on them keep running.")] = False,
) -> None:
    """Stop the components started by local-start or distributed-start, and nothing else."""
    from openclaw_rl.launch import start
    from openclaw_rl.launch.narration import Narration
    from openclaw_rl.runtime import mesh_file

    home = Home.default()
    mesh = mesh_file.read(home)
    goes_on = _started_elsewhere(home) if mesh is None else {}  # read before its configuration goes
    with Narration(err, "stopping") as narration:
        if mesh is not None:
            from openclaw_rl.launch.distributed.stop import everywhere

            def say(text: str) -> None:
                if forget:  # which hosts were given up is not to pass by
                    err.print(text, soft_wrap=True, highlight=False, markup=False)
                narration.say(text)

            stopped = everywhere(home, mesh, say, forget)
        else:
            stopped = start.stop_all(home, narration.say)
    out.print("stopped " + ", ".join(stopped) if stopped else "nothing was running")
    for name, address in goes_on.items() if stopped else ():
        out.print(f"{name} at {address} was not started from here and goes on", highlight=False, soft_wrap=True)


def _started_elsewhere(home: Home) -> dict[str, str]:
    """Return addresses of components that the running mesh uses but did not start."""
    from openclaw_rl.config import ConfigError
    from openclaw_rl.runtime.running_config import running_config

    try:
        return running_config(home).components.addresses()
    except (ConfigError, OSError):  # ending the mesh depends on no file
        return {}
