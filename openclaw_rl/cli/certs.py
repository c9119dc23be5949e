"""certs: show, renew, add."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.config import Config

certs = typer.Typer(no_args_is_help=True, help="Show, renew and issue the mesh's certificates.",
                    epilog="Example: openclaw-rl certs show")
app.add_typer(certs, name="certs")

_Role = Annotated[list[str] | None, typer.Option("--role", help="policy_server, env_server, prm_judge, trainer or "
                                                                "operator; default: all that exist.",
                                                 show_default=False)]
_Host = Annotated[list[str] | None, typer.Option("--host", help="Host name or IP address to issue it for; repeatable.",
                                                 show_default=False)]


def make_certificates(home: Home) -> bool:
    """Make the home's CA and the certificates of all roles, as far as they are not there.

    Returns:
        True when one was made.

    Raises:
        CertificateError: what is there can't be used.
        OSError: the folder can't be written.
    """
    from openclaw_rl.rpc.auth import ca
    from openclaw_rl.rpc.auth.certificates import ROLES

    folder = home.certs
    made = ca.make_authority(folder)
    if not ca.can_sign(folder):  # they come from the machine that has the CA
        return made
    hosts = ca.local_names()
    return any([ca.issue(folder, role, hosts) for role in ROLES]) or made


@certs.command("show", epilog="Example: openclaw-rl certs show --json")
def show(as_json: Json = False) -> None:
    """Show the holder and expiry of each certificate. Exits with 1 if one is unusable or expires soon."""
    config, folder = _where()
    rows = _rows(folder)
    if as_json:
        print_json({"folder": str(folder), "signs": (folder / "ca.key").exists(), "certificates": rows})
    else:
        out.print(f"{folder}{', with the key of the CA' if (folder / 'ca.key').exists() else ''}", highlight=False,
                  markup=False, soft_wrap=True)
        for row in rows:
            until = f"until {row['expires'][:10]} ({row['days']} days)" if row["expires"] else ""
            hosts = f" at {', '.join(row['hosts'])}" if row["hosts"] else ""
            problem = f" [red]{escape(row['problem'])}[/]" if row["problem"] else ""
            out.print(f"[bold]{row['file']}[/] {escape(row['uri'])} {until}{escape(hosts)}{problem}", highlight=False,
                      soft_wrap=True)
        if not rows:
            out.print("no certificates; `openclaw-rl init` creates them", highlight=False, markup=False)
    soon = config.security.warn_days
    raise typer.Exit(0 if rows and all(not row["problem"] and row["days"] >= soon for row in rows) else 1)


@certs.command("renew", epilog="Example: openclaw-rl certs renew --role trainer")
def renew(role: _Role = None, host: _Host = None) -> None:
    """Replace keys and certificates by new ones. Running components load them without a restart.

    To renew those on other hosts, use `openclaw-rl certs add --out FOLDER` or `distributed-start`.
    """
    from openclaw_rl.rpc.auth import ca
    from openclaw_rl.rpc.auth.certificates import ROLES

    _, folder = _where()
    roles = role or [name for name in ROLES if (folder / f"{name}.crt").exists()]
    if not roles:
        err.print(f"no certificates in {folder}; `openclaw-rl init` creates them", soft_wrap=True)
        raise typer.Exit(1)
    for name in roles:
        ca.renew(folder, name, host or ())
        out.print(f"renewed {name}, until {ca.expiry(folder / f'{name}.crt'):%Y-%m-%d}", highlight=False)


@certs.command("add", epilog="Example: openclaw-rl certs add --role prm_judge --host 10.0.0.3 --out judge-certs")
def add(role: Annotated[str, typer.Option("--role", help="policy_server, env_server, prm_judge, trainer or operator.")],
        host: _Host = None,
        folder: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write ca.crt, the certificate and "
                                                                        "its key to, for another machine; default: the "
                                                                        "mesh's own.",
                                                    show_default=False)] = None,
        request: Annotated[Path | None, typer.Option("--request", help="Sign this certificate signing request (CSR, "
                                                                       "PEM) instead of generating a key.",
                                                     show_default=False)] = None
        ) -> None:
    """Issue a certificate signed by the CA on this machine."""
    from openclaw_rl.rpc.auth import ca
    from openclaw_rl.rpc.auth.certificates import read_file

    if request is not None and folder is None:  # this machine's own certificate would be for a key that it has not
        raise typer.BadParameter("--request needs --out: the certificate is for a key that is elsewhere")
    _, own = _where()
    target = folder or own
    if request is not None:
        signed = ca.sign(own, read_file(request), role, host or ())
        ca.write_public(target / f"{role}.crt", signed)
        if target != own:
            ca.write_public(target / "ca.crt", read_file(own / "ca.crt"))
    else:
        if target == own and (own / f"{role}.crt").exists():
            err.print(f"{own / f'{role}.crt'} already exists; `openclaw-rl certs renew --role {role}` makes a new "
                      "one, --out one for another machine", soft_wrap=True)
            raise typer.Exit(1)
        ca.issue(own, role, host or (ca.local_names() if target == own else ()), into=target, replace=True)
    out.print(f"wrote {target / f'{role}.crt'}", soft_wrap=True, highlight=False, markup=False)


def _where() -> tuple[Config, Path]:
    from openclaw_rl.runtime.identity import certificates_folder
    from openclaw_rl.runtime.running_config import running_config

    home = Home.default()
    config = running_config(home)
    return config, certificates_folder(config, home)


def _rows(folder: Path) -> list[dict[str, Any]]:
    from openclaw_rl.rpc.auth.certificates import ROLES

    return [_row(folder, name) for name in ("ca", *ROLES) if (folder / f"{name}.crt").exists()]


def _row(folder: Path, name: str) -> dict[str, Any]:
    """A certificate: `file`, `uri`, `expires`, `days` that are left, `hosts`, `problem` ("" when it can be used)."""
    from openclaw_rl.rpc.auth import ca
    from openclaw_rl.rpc.auth.certificates import CertificateError, identity_of, parse, read_file
    from openclaw_rl.rpc.auth.tls import Credentials

    row: dict[str, Any] = {"file": f"{name}.crt", "uri": "", "expires": "", "days": 0, "hosts": [], "problem": ""}
    try:
        found = parse(read_file(folder / f"{name}.crt"), str(folder / f"{name}.crt"))
        who = identity_of(found)
        ends = found.not_valid_after_utc
        row |= {"uri": "/".join(filter(None, [f"spiffe://{who.mesh}" if who.mesh else "", who.role])),
                "expires": ends.isoformat(), "days": (ends - datetime.datetime.now(datetime.UTC)).days,
                "hosts": ca.hosts_of(found)}
        if name != "ca" and (folder / f"{name}.key").exists():
            Credentials(folder, name)
        if row["days"] < 0:
            row["problem"] = "has ended"
    except CertificateError as error:
        row["problem"] = str(error)
    return row
