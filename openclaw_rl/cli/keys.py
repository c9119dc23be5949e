"""keys: manage the policy server's bearer keys."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.rpc.auth.keys import Key, KeyFile

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

keys = typer.Typer(invoke_without_command=True, help="Manage the policy server's bearer keys. Changes take effect with "
                                                     "the next request, without a restart.",
                   epilog="Example: openclaw-rl keys add laptop --scope chat; openclaw-rl keys; openclaw-rl keys "
                   "revoke laptop")
app.add_typer(keys, name="keys")

Name = Annotated[str, typer.Argument(help="Name of the key, shown in lists, logs and metrics.")]


@keys.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        _list(as_json)


@keys.command("list", epilog="Example: openclaw-rl keys list --json")
def list_keys(as_json: Json = False) -> None:
    """List keys with scopes, expiry and state. Only digests of keys are stored."""
    _list(as_json)


@keys.command(epilog="Example: openclaw-rl keys add laptop --scope chat; openclaw-rl keys add grafana --scope read "
              "--expires 90d")
def add(name: Name,
        scope: Annotated[list[str], typer.Option("--scope", help="chat: requests and feedback; read: models, metrics, "
                                                                 "state; admin: everything. Repeatable.")],
        expires: Annotated[str | None, typer.Option("--expires", help="Lifetime, such as 12h, 30d or 8w; default: "
                                                                      "until revoked.", show_default=False)] = None,
        as_json: Json = False) -> None:
    """Create a key. It is printed once; only its digest is stored."""
    with _told():
        shown, key = _file().add(name, scope, None if expires is None else time.time() + _seconds("expires", expires))
    _show(shown, key, as_json)


@keys.command(epilog="Example: openclaw-rl keys revoke laptop")
def revoke(name: Annotated[str, typer.Argument(help="Name or id of the key.")], as_json: Json = False) -> None:
    """Revoke a key. Its next request is rejected, and its running responses end within a second."""
    file = _file()
    revoked = file.revoke(name)
    left = [key for key in file.read() if not key.dead()]
    if as_json:
        print_json({"revoked": [_facts(key) for key in revoked]})
        return
    out.print(f"revoked {name}", highlight=False, markup=False)
    if not left:
        out.print("no valid key is left: every request is rejected until `openclaw-rl keys add` creates one. To serve "
                  f"127.0.0.1 without keys, remove {file.path} and restart the policy server", soft_wrap=True,
                  highlight=False, markup=False)


@keys.command(epilog="Example: openclaw-rl keys rotate laptop --keep 1h")
def rotate(name: Annotated[str, typer.Argument(help="Name or id of the key.")],
           keep: Annotated[str | None, typer.Option("--keep", help="How long the old key remains valid, such as 1h; "
                                                                   "default: revoke it at once.",
                                                    show_default=False)] = None,
           as_json: Json = False) -> None:
    """Replace a key by a new one of the same name and scopes."""
    with _told():
        shown, key = _file().rotate(name, 0.0 if keep is None else _seconds("keep", keep))
    _show(shown, key, as_json)


def _file() -> KeyFile:
    from openclaw_rl.rpc.auth.keys import KeyFile
    from openclaw_rl.rpc.auth.keys.ring import key_path
    from openclaw_rl.runtime import mesh_file
    from openclaw_rl.runtime.running_config import running_config

    home = Home.default()
    mesh = mesh_file.read(home)
    if mesh is not None and (at := mesh.hosts.get("policy_server")):
        from openclaw_rl.config import ConfigError
        from openclaw_rl.launch.distributed.host import is_here

        if not is_here(at):
            raise ConfigError(f"the keys of this mesh are on host {at}: run `openclaw-rl keys` there")
    return KeyFile(key_path(running_config(home), home))


@contextmanager
def _told() -> Iterator[None]:
    """Report an invalid name, scope or time as a usage error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _seconds(option: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)([mhdw])", text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"--{option}: {text!r} is not allowed: a time such as 30m, 12h, 30d or 8w")
    return float(match[1]) * _UNITS[match[2]]


def _show(shown: str, key: Key, as_json: bool) -> None:
    if as_json:
        print_json({"key": shown, **_facts(key)})
        return
    print(shown)  # alone on stdout, for `KEY=$(openclaw-rl keys add ...)`
    err.print(f"key {key.name} with {', '.join(sorted(key.scopes))}: it is shown only now. Clients send it as "
              "`Authorization: Bearer KEY` (OpenAI's SDKs: api_key); `openclaw-rl chat` takes it from "
              "OPENCLAW_RL_API_KEY", soft_wrap=True, highlight=False, markup=False)


def _list(as_json: bool) -> None:
    file = _file()
    found = file.read()
    if as_json:
        print_json({"file": str(file.path), "keys": [_facts(key) for key in found]})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "id", "scopes", "made", "state"):
        table.add_column(column, no_wrap=True)
    for key in found:
        state = key.dead().removeprefix("has ").removeprefix("been ") or (
            "good" if key.expires is None else f"good until {_when(key.expires)}")
        table.add_row(key.name, key.id, ", ".join(sorted(key.scopes)), _when(key.created), state)
    if found:
        out.print(table)
    else:
        out.print("no keys; `openclaw-rl keys add NAME --scope chat` creates one", highlight=False,
                  markup=False)


def _facts(key: Key) -> dict[str, Any]:
    times = {name: None if at is None else datetime.fromtimestamp(at).astimezone().isoformat()
             for name, at in (("created", key.created), ("expires", key.expires), ("revoked", key.revoked))}
    return {"id": key.id, "name": key.name, "scopes": sorted(key.scopes), **times, "good": not key.dead()}


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
