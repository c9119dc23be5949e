"""set-aside: list quarantined messages and files."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import clipped, err, out, print_json
from openclaw_rl.runtime.home import Home


@app.command("set-aside", epilog="Example: openclaw-rl set-aside --id turn_0190... --json")
def set_aside(id: Annotated[str | None, typer.Option("--id", help="Only messages with this id, including their "
                                                                  "content.",
                                                     show_default=False)] = None,
              limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages of each "
                                                                              "kind.")] = 50,
              as_json: Json = False) -> None:
    """List quarantined messages and files of this machine: what was rejected or found damaged, and why.

    Nothing depends on them any more. Their number is bounded; files may be deleted.
    """
    from openclaw_rl.runtime import mesh_file
    from openclaw_rl.storage.quarantine_listing import files, messages

    home = Home.default()
    if (mesh := mesh_file.read(home)) is not None:
        from openclaw_rl.launch.distributed.host import is_here

        if others := [f"{name} (on {host})" for name, host in mesh.hosts.items() if not is_here(host)]:
            err.print(f"not included: {', '.join(others)}; run `openclaw-rl set-aside` there", soft_wrap=True,
                      highlight=False, markup=False)
    found, kept = messages(home, limit, id), files(home) if id is None else []
    if as_json:
        print_json({"messages": [{"component": m.component, "table": m.table, "id": m.id, "reason": m.reason,
                                  "at": datetime.fromtimestamp(m.at).astimezone().isoformat(),
                                  **({"content": m.content()} if id is not None else {})} for m in found],
                    "files": [{"component": f.component, "path": str(f.path), "bytes": f.size} for f in kept]})
        return
    for m in found:
        id_shown = escape(str(clipped(m.id, 80))) or "(no id)"
        out.print(f"{datetime.fromtimestamp(m.at):%Y-%m-%d %H:%M:%S} [bold]{m.component}[/] {id_shown}: "
                  f"{escape(str(clipped(m.reason, 400)))}", soft_wrap=True, highlight=False)
        if id is not None:
            out.print_json(data=m.content() or {"unreadable": f"{len(m.payload)} bytes"})
    for f in kept:
        out.print(f"[bold]{f.component}[/] {escape(str(f.path))} ({f.size / 2**20:.1f} MB)", soft_wrap=True,
                  highlight=False)
    if not found and not kept:
        out.print("nothing is set aside" + (f" of {id}" if id else ""), highlight=False, markup=False)
