"""doctor: check all that a mesh needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import harmless, out, print_json
from openclaw_rl.runtime.home import Home

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@app.command(epilog="Example: openclaw-rl doctor; openclaw-rl doctor --json | jq '.[] | select(.level != \"ok\")'")
def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", show_default=False, help=(
        "Configuration file; default: the running mesh's, else config.yaml in the home folder."))] = None,
    as_json: Json = False,
) -> None:
    """Check all that a mesh needs, and say what cures what is wrong: libraries, limits, clock, proxies, home folder,
    stores, configuration, disk, memory, GPU, model, keys, certificates, ports, trainer, sandboxes, components.

    Nothing is changed, and a mesh may run meanwhile. Exits with 1 if anything is wrong that keeps it from working.
    """
    from openclaw_rl.launch.doctor.examination import examine

    findings = []
    for finding in examine(Home.default(), config):
        findings.append(finding)
        if as_json:
            continue
        mark, colour = _MARKS[finding.level]
        out.print(Text.assemble((mark, colour), f" {finding.check:<13} {harmless(finding.text)}"), soft_wrap=True)
        if finding.cure:
            out.print(Text(f"  {'':<13} -> {harmless(finding.cure)}", colour), soft_wrap=True)
    if as_json:
        print_json([finding.json() for finding in findings])
    raise typer.Exit(1 if any(finding.level == "fail" for finding in findings) else 0)
