"""Address of the policy server's OpenAI entrypoint."""

from __future__ import annotations

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home, read_record

#: Seconds for a policy server that the configuration names to say it.
_PATIENCE = 5.0


def http_address(home: Home) -> str:
    """http://HOST:PORT of the running mesh's door, or https://: as the mesh file of a mesh on several hosts says, the
    policy server that the configuration names, or the one that runs here; empty when none does.

    Raises:
        ConfigError: the mesh file or the configuration can't be used.
    """
    from openclaw_rl.runtime import mesh_file
    from openclaw_rl.runtime.running_config import running_config

    if (mesh := mesh_file.read(home)) is not None:
        return mesh.http_address
    if address := running_config(home).components.policy_server.address:
        try:
            with ComponentServiceClient(address, component="policy_server", home=home) as client:
                return client.get_status(timeout=_PATIENCE).status.http_address
        except MeshError:
            return ""
    record = read_record(home, "policy_server")
    return record.http_address if record else ""
