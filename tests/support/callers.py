"""Callers of components that run on plain text, which have to name the mesh."""

from __future__ import annotations

from openclaw_rl.rpc.membership import Membership
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home


def of_mesh(home: Home, component: str = "") -> Membership:
    """Somebody of the mesh in `home`, which has run; a component, or any client."""
    return Membership(mesh_id.read(home), component)
