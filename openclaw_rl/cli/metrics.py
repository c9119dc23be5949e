"""metrics: a Prometheus endpoint for all components."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from openclaw_rl.cli.app import app, err, out
from openclaw_rl.runtime.home import Home

#: Only this machine reads them: they need no key.
HOST = "127.0.0.1"
PORT = 9464


@app.command(epilog="Example: openclaw-rl metrics --port 9464, then curl http://127.0.0.1:9464/metrics")
def metrics(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: any free port.", min=0, max=65535)] = PORT,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and exit.")] = False,
) -> None:
    """Expose Prometheus metrics of all four components until interrupted. The mesh may start and stop meanwhile.

    The policy server's own /metrics also has histograms; servers/observability has a configuration for both.
    """
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server

    from openclaw_rl.launch.status import report
    from openclaw_rl.observability.prometheus import MeshCollector

    home = Home.default()
    registry = CollectorRegistry()
    registry.register(MeshCollector(lambda: [(component.name, component.status)
                                             for component in report(home).components]))
    if once:
        out.print(generate_latest(registry).decode(), soft_wrap=True, highlight=False, markup=False, end="")
        return
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        err.print(f"cannot listen on {HOST}:{port}: {error.strerror or error}; choose another --port", markup=False)
        raise typer.Exit(1) from None
    out.print(f"http://{HOST}:{server.server_port}/metrics", highlight=False)
    try:
        threading.Event().wait()
    finally:
        server.shutdown()
        thread.join()
