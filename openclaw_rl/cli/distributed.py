"""distributed-start, mesh: a mesh on several hosts and its use from other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from openclaw_rl.cli.app import app
from openclaw_rl.cli.terminal import err, out
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.launch.distributed.start import DistributedStart

_mesh = typer.Typer(no_args_is_help=True, help="Use a mesh from machines that it does not run on, and show its id.",
                    epilog="Example: openclaw-rl mesh export access.yaml, and on the other machine openclaw-rl mesh "
                    "join access.yaml")
app.add_typer(_mesh, name="mesh")


@app.command("distributed-start", epilog="Example: openclaw-rl distributed-start --config distributed_config.yaml "
             "--dry-run")
def distributed_start(
    file: Annotated[Path | None, typer.Argument(help="Same as --config.", show_default=False)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file; default: config.yaml in "
                                                                       "the home folder.",
                                                show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run",
                                          help="Show what would run where, without contacting any host.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds without any progress to wait for.", min=1)] = 300,
) -> None:
    """Start each component on its configured host with Ray, and wait until all are RUNNING.

    Ray is started on the hosts over SSH unless `distributed.ray_address` or RAY_ADDRESS names a running cluster.
    Problems of the hosts are reported in one list before anything is started. A second call finds the running mesh.
    """
    from openclaw_rl.config import load_config
    from openclaw_rl.launch.distributed.start import DistributedStart

    home = Home.default()
    path = config or file or (home.config_file if home.config_file.exists() else None)
    err.print(f"mesh in {home.root}, configuration {path or 'built in'}", soft_wrap=True, highlight=False)
    start = DistributedStart(home, load_config(path), err)
    if dry_run:
        _show(start)
        raise typer.Exit(1 if start.plan.problems else 0)
    policy = start.config.components.policy_server
    if policy.engine == "sglang" and "policy_server" in start.plan.hosts:  # a large model takes more
        timeout = max(timeout, policy.sglang.start_timeout)
    mesh = start.start(timeout)
    for component in mesh.components:
        if component.state != "RUNNING":
            err.print(f"[yellow]{component.name}: {component.state}[/] {component.detail}", soft_wrap=True,
                      highlight=False)
    _say_what_next(home)
    raise typer.Exit(0 if all(c.state == "RUNNING" or c.name not in start.plan.hosts for c in mesh.components) else 1)


def _show(start: DistributedStart) -> None:
    """Print the plan: components, hosts, ports."""
    from openclaw_rl.launch.distributed import plan as plans
    from openclaw_rl.launch.distributed.host import python_of

    plan, settings = start.plan, start.config.distributed
    table = Table(box=None, pad_edge=False)
    for column in ("component", "host", "ports"):
        table.add_column(column, no_wrap=True)
    table.add_column("what", overflow="fold")
    for name in plan.hosts:
        kinds = {"port": "HTTP" if name == "policy_server" else "gRPC", "grpc_port": "gRPC", "keys_port": "keys"}
        ports = ", ".join(f"{kinds[key]} {port}" for key, port in plans.ports(start.config, name).items())
        table.add_row(name, plan.hosts[name], ports, _what(start, name))
    out.print(table)
    for name in ("policy_server", "env_server", "prm_judge", "trainer"):
        section = getattr(start.config.components, name)
        if name not in plan.hosts and section.address:
            out.print(f"{name} runs already at {section.address}", highlight=False)
    ray = (f"joined at {start.join}" if start.join else
           f"brought up over ssh, head {plan.head}:{settings.ray_port}, encrypted")
    out.print(f"ray: {ray}\npython: {python_of(settings)}\nhome: {settings.home or '~/.openclaw-rl'}",
              highlight=False, soft_wrap=True)
    if settings.elsewhere:
        out.print(f"a component whose host is gone for {settings.elsewhere_after:.0f} s is started on another host",
                  highlight=False)
    for problem in plan.problems:
        err.print(f"[red]problem:[/] {problem}", soft_wrap=True, highlight=False)
    out.print("nothing was started; without --dry-run the hosts are checked first, then started", style="dim")


def _what(start: DistributedStart, name: str) -> str:
    components = start.config.components
    if name == "policy_server":
        policy = components.policy_server
        return f"{policy.model}, engine {policy.engine}" + (f", {policy.workers} workers" if policy.workers > 1 else "")
    if name == "env_server":
        return ", ".join(f"{env.count} {kind}" + (f" ({env.image})" if env.image else "")
                         for kind, env in components.env_server.environments.items())
    if name == "prm_judge":
        return f"{components.prm_judge.model or components.prm_judge.judge}, {components.prm_judge.workers} at once"
    trainer = components.trainer
    facts = [f"backend {trainer.backend}", *([f"{trainer.gpus} GPUs"] if trainer.gpus else []),
             *([f"model {trainer.model_size}"] if trainer.model_size else [])]
    return ", ".join(facts)


def _say_what_next(home: Home) -> None:
    from openclaw_rl.launch.distributed.start import first_key_file
    from openclaw_rl.runtime import mesh_file

    mesh = mesh_file.read(home)
    if mesh is None:
        return
    if mesh.http_address:
        key = first_key_file(home)
        secret = f'-H "Authorization: Bearer $(cat {key})" ' if key.exists() else '-H "Authorization: Bearer KEY" '
        trust = f"--cacert {home.certs / 'ca.crt'} " if mesh.http_address.startswith("https") else ""
        out.print("try it:", highlight=False)
        out.print(f"  curl -N {trust}{secret}{mesh.http_address}/v1/chat/completions -H 'Content-Type: "
                  """application/json' -d '{"messages": [{"role": "user", "content": "What is a heron?"}], """
                  """"stream": true}'""", soft_wrap=True, highlight=False, markup=False)
    out.print("next: openclaw-rl status | chat | turns | versions | logs -f --host HOST | mesh export FILE | stop-all",
              soft_wrap=True, highlight=False, markup=False)


@_mesh.command("id", epilog="Example: OPENCLAW_RL_MESH=$(openclaw-rl mesh id) ./judge_go --data ~/judge --trainer "
               "127.0.0.1:50054")
def show_id() -> None:
    """Print the id of the mesh, which is made if it has none.

    Components of another id are refused. Those in another home folder or of another make are given it by the variable
    OPENCLAW_RL_MESH or by `mesh_id` in their configuration.
    """
    from openclaw_rl.rpc import membership

    out.print(membership.id_of(Home.default()), highlight=False, soft_wrap=True)


@_mesh.command(epilog="Example: openclaw-rl mesh export access.yaml")
def export(file: Annotated[Path, typer.Argument(help="File to write.", show_default=False)]) -> None:
    """Write a file that lets another machine operate this mesh. It holds addresses, the CA's certificate, and an
    operator's certificate and key: keep it secret."""
    from openclaw_rl.launch.distributed import export as pass_on

    pass_on.export(Home.default(), file)
    out.print(f"wrote {file}; `openclaw-rl mesh join FILE` on another machine uses it",
              soft_wrap=True, highlight=False)


@_mesh.command(epilog="Example: openclaw-rl mesh join access.yaml && openclaw-rl status")
def join(file: Annotated[Path, typer.Argument(help="File written by `mesh export`.", show_default=False)]) -> None:
    """Use the mesh described by FILE for the commands on this machine: status, logs, turns, versions, trace, rollback,
    ..."""
    from openclaw_rl.launch.distributed import export as pass_on

    mesh = pass_on.join(Home.default(), file)
    out.print("joined the mesh with " + ", ".join(f"{name} at {at}" for name, at in mesh.addresses.items())
              + "; next: openclaw-rl status", soft_wrap=True, highlight=False)


@_mesh.command(epilog="Example: openclaw-rl mesh leave")
def leave() -> None:
    """Leave a joined mesh and delete its certificates."""
    from openclaw_rl.launch.distributed import export as pass_on

    out.print("left" if pass_on.leave(Home.default()) else "no mesh was joined")
