"""metrics: a Prometheus endpoint for all components."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from openclaw_rl.cli.app import app
from openclaw_rl.cli.terminal import err, out
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
    from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app

    from openclaw_rl.launch.status import report
    from openclaw_rl.observability.prometheus import MeshCollector

    home = Home.default()
    registry = CollectorRegistry()
    registry.register(MeshCollector(lambda: [(component.name, component.status)
                                             for component in report(home).components]))
    if once:
        typer.echo(generate_latest(registry), nl=False)  # as it is: rich would take colons for emoji
        return
    try:
        server = _server(port, this_machine_only(make_wsgi_app(registry)))
    except OSError as error:
        err.print(f"cannot listen on {HOST}:{port}: {error.strerror or error}; choose another --port", markup=False)
        raise typer.Exit(1) from None
    out.print(f"http://{HOST}:{server.server_port}/metrics", highlight=False)
    with server:
        server.serve_forever()


def this_machine_only(wsgi: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """A WSGI application that web pages of other sites can't read."""
    from starlette.datastructures import Headers

    from openclaw_rl.rpc.auth.web_pages import STATUS, HostNames, validate_host, validate_site

    names = HostNames.of((), True, "")

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        headers = Headers({key.removeprefix("HTTP_").replace("_", "-").lower(): value
                           for key, value in environ.items() if key.startswith("HTTP_")})
        version = environ["SERVER_PROTOCOL"].removeprefix("HTTP/")
        rejection = validate_host(headers, version) or (
            names.validate(headers["host"]) if "host" in headers else None) or validate_site(headers, "GET", False)
        if rejection is None:
            return wsgi(environ, start_response)
        start_response(f"{STATUS[rejection.code]} Rejected", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{rejection.message}\n".encode()]

    return checked


def _server(port: int, wsgi: Callable[..., Iterable[bytes]]) -> Any:
    """Listen; raises OSError."""
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Silent(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log no requests."""

    return make_server(HOST, port, wsgi, Server, Silent)
