"""Checks of a mesh: its folder, stores, model, keys, certificates, ports, trainer, sandboxes, components."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from openclaw_rl.config import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.launch import checks
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.doctor.finding import Finding, Subject, existing
from openclaw_rl.launch.doctor.machine import model_folder
from openclaw_rl.models.api_endpoints import check_credentials
from openclaw_rl.models.config import ModelError
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.storage import database
from openclaw_rl.storage.errors import StorageError
from openclaw_rl.storage.opening import Unusable, check_header

_ELSEWHERE = "set OPENCLAW_RL_HOME to a folder of yours"


def folder(home: Home) -> Iterator[Finding]:
    """The home can be written, and by its owner alone."""
    there = existing(home.root)
    if not there.is_dir():
        yield Finding("home", "fail", f"{there} is a file, and {home.root} has to be a folder", _ELSEWHERE)
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Finding("home", "fail", f"{there} can't be written", _ELSEWHERE)
    elif there != home.root:
        yield Finding("home", "ok", f"{home.root} is made at the first start")
    elif (there.stat().st_uid != os.geteuid()) or there.stat().st_mode & 0o077:
        yield Finding("home", "warn", f"other users can enter {there} (mode {there.stat().st_mode & 0o777:04o}), which "
                                      "keeps every conversation", f"chmod 700 {there}; `local-start` does so, too")
    else:
        yield Finding("home", "ok", f"{there}, its owner's alone")


def stores(home: Home) -> Iterator[Finding]:
    """This release can read the stores."""
    found = [home.component(name) / "state.db" for name in COMPONENTS]
    files = [file for file in found if file.exists()]
    well = True
    for file in files:
        try:
            check_header(file, database.APPLICATION, database.FORMAT)
        except StorageError as error:
            well = False
            yield Finding("stores", "fail", str(error), "install the release that wrote it, or a newer one")
        except Unusable as error:
            well = False
            yield Finding("stores", "fail", f"{file} can't be used: {error}; a start sets it aside", f"mv {file} "
                          "elsewhere, or restore it from a backup")
    if well:
        yield Finding("stores", "ok", f"{len(files)} of {len(found)} are there, of a format that is known")


def model(subject: Subject) -> Iterator[Finding]:
    """The packages that serve the model are installed, and it can be used."""
    from openclaw_rl.models.prepare import check_folder

    name, place = subject.config.components.policy_server.model, model_folder(subject)
    try:
        checks.check_packages(subject.config)
        if place is not None and place.is_dir():
            check_folder(place)
    except StartError as error:
        text, _, cure = str(error).partition(": ")
        yield Finding("model", "fail", text, cure)
    except ModelError as error:
        yield Finding("model", "fail", str(error), "`openclaw-rl models` lists those that are here")
    else:
        if place is None or place.is_dir():
            yield Finding("model", "ok", name)
        elif place.parent == subject.home.models:
            yield Finding("model", "ok", f"{name} comes with the first start")
        else:
            yield Finding("model", "fail", f"{name} is not there",
                          "components.policy_server.model: a folder, or an id of the Hugging Face hub")


def keys(subject: Subject) -> Iterator[Finding]:
    """Models behind an API have their keys, and the entrypoint is closed to strangers."""
    try:
        check_credentials(subject.config)
        checks.check_entrypoint(subject.home, subject.config, subject.here)
    except ConfigError as error:
        for line in str(error).splitlines():
            yield Finding.of("keys", "fail", line.replace(": set ", "; set ", 1))
    else:
        yield Finding("keys", "ok", "all that are needed are there")


def certificates(subject: Subject) -> Iterator[Finding]:
    """Certificates are there where the mesh needs some, and valid for a while."""
    try:
        if not identity.wanted(subject.config):
            yield Finding("certificates", "ok", "none are needed: the mesh is on this machine alone")
            return
        from openclaw_rl.rpc.auth import tls

        well = True
        for role in (*subject.here, "operator"):
            made = tls.credentials(subject.config, subject.home, role)
            for _, message in made.problems() if made is not None else ():
                well = False
                yield Finding.of("certificates", "warn", message)
        if well:
            yield Finding("certificates", "ok", f"{len(subject.here) + 1} in "
                                                f"{identity.certificates_folder(subject.config, subject.home)}")
    except ConfigError as error:
        yield Finding("certificates", "fail", str(error), "`openclaw-rl init` makes what is missing, `certs renew` "
                                                          "new ones")


def ports(subject: Subject) -> Iterator[Finding]:
    """Ports of what does not run yet are free."""
    try:
        checks.check_ports(subject.config, subject.waiting)
    except StartError as error:
        for line in str(error).splitlines():
            yield Finding.of("ports", "fail", line)
    else:
        taken = [component.address or "?" for component in subject.report.components
                 if component.name in subject.here and component.name not in subject.waiting]
        yield Finding("ports", "ok", f"ours: {', '.join(taken)}" if taken else "free")


def trainer(subject: Subject) -> Iterator[Finding]:
    """The trainer's back end can run here."""
    if "trainer" not in subject.here:
        return
    try:
        layout = checks.check_trainer(subject.config, subject.home)
    except StartError as error:
        for line in str(error).splitlines():
            yield Finding.of("trainer", "fail", line)
    else:
        yield Finding("trainer", "ok", layout or "can run here")


def sandboxes(subject: Subject) -> Iterator[Finding]:
    """A sandbox can be made here, for episodes."""
    if "env_server" not in subject.here:
        return
    from openclaw_rl.rollouts.sandboxes import factory

    configured = subject.config.components.env_server.environments
    well = True
    for name, environment in (configured or {"": EnvironmentConfig(count=1)}).items():
        backend = factory.backend(environment, subject.home.root)
        if rejection := asyncio.run(backend.validate(factory.spec(environment))):
            well = False
            told = f"environment {name}: {rejection.message}" if name else (
                f"{rejection.message}; without it there are no episodes, and all else works")
            yield Finding.of("sandboxes", "fail" if name else "warn", told)
    if well:
        yield Finding("sandboxes", "ok", "can be made")


def components(subject: Subject) -> Iterator[Finding]:
    """What runs is well."""
    if not subject.runs:
        yield Finding("mesh", "ok", "does not run: `openclaw-rl local-start` starts it")
        return
    for component in subject.report.components:
        name = component.name
        if component.state == "RUNNING":
            yield Finding("mesh", "ok", f"{name} RUNNING")
            continue
        if component.state == "STOPPED" and name not in subject.here and not component.detail:
            continue
        cure = "openclaw-rl local-start" if component.state == "STOPPED" else f"openclaw-rl logs {name}"
        yield Finding("mesh", "fail" if component.state in ("STOPPED", "FAILED") else "warn",
                      f"{name} {component.state}" + (f": {component.detail}" if component.detail else ""), cure)
    for problem in subject.report.problems:
        yield Finding.of("mesh", "warn", problem)
