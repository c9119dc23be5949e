"""All commands at a glance, in order of use, and where each is: only the one that is meant is loaded."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import NamedTuple


class Command(NamedTuple):
    module: str  #: in this package
    summary: str


COMMANDS = {
    "init": Command("mesh", "Write a commented configuration file, and create certificates."),
    "certs": Command("certs", "Show, renew and issue the mesh's certificates."),
    "keys": Command("keys", "Manage the bearer keys of the policy server."),
    "local-start": Command("mesh", "Start all four components on this machine."),
    "models": Command("models", "List models that are here, and the memory they take."),
    "distributed-start": Command("distributed", "Start each component on its host, with Ray."),
    "mesh": Command("distributed", "Use a mesh from machines that it does not run on."),
    "status": Command("mesh", "Show the state of all components."),
    "doctor": Command("doctor", "Check all that a mesh needs, and say what cures what is wrong."),
    "dashboard": Command("dashboard", "Serve the web dashboard."),
    "metrics": Command("metrics", "Expose Prometheus metrics of all components."),
    "chat": Command("chat", "Chat with the policy, and rate its answers."),
    "turns": Command("turns", "List turns and what became of them."),
    "trace": Command("trace", "Show a turn's way from request to version as a tree."),
    "episodes": Command("episodes", "Run the policy in sandboxes and inspect the results."),
    "environments": Command("environments", "List environments, their tasks and leases."),
    "versions": Command("versions", "List and compare policy versions."),
    "rollback": Command("versions", "Activate a kept version, older or newer."),
    "pin": Command("pin", "Keep serving a version while training continues."),
    "unpin": Command("pin", "Activate the newest version again."),
    "pause": Command("training", "Pause training; serving and judging continue."),
    "resume": Command("training", "Resume training."),
    "train-now": Command("training", "Train on the samples collected so far."),
    "forget": Command("forget", "Delete a session everywhere, and what was learned from it."),
    "logs": Command("logs", "Show logs of components, or the journal."),
    "backup": Command("backup", "Write a backup of the home folder; the mesh may run."),
    "restore": Command("backup", "Make a home folder from a backup."),
    "set-aside": Command("set_aside", "List quarantined messages and files, and why."),
    "conformance": Command("conformance", "Check a server of any make against the contract."),
    "docs": Command("docs", "Show a page of the user documentation."),
    "stop-all": Command("mesh", "Stop what was started, and nothing else."),
}


def load(arguments: Sequence[str]) -> None:
    """Import the module of the command that these arguments name; all of them for a shell that completes words."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if "_OPENCLAW_RL_COMPLETE" in os.environ:
        importlib.import_module("openclaw_rl.cli.commands")
    elif name in COMMANDS:
        importlib.import_module(f"openclaw_rl.cli.{COMMANDS[name].module}")
