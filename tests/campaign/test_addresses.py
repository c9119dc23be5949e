"""An address in every text of every route and RPC: the mesh never connects to it (server-side request forgery)."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.rpc.membership import id_of
from openclaw_rl.runtime.home import COMPONENTS, Home
from tests.mesh.in_process import quick_config, tiny_model
from tests.support.canary import canary
from tools.campaign import grpc_messages, http_requests
from tools.campaign.grpc_messages import SERVICES, GrpcMessages
from tools.campaign.http_requests import HttpRequests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_no_request_names_an_address_that_is_connected_to(tmp_path: Path) -> None:
    config = quick_config(tiny_model(tmp_path / "model"), {"prm_judge": {"judge": "rules"}})
    async with canary() as inside, InProcessMesh(config, Home(tmp_path / "home"), any_ports=True) as mesh:
        texts = [form.format(inside.address) for form in (
            "http://{}/latest/meta-data", "{}", "ws://{}/ws", "dns:///{}", "//{}/x", "http://good.test@{}/")]
        addresses = {name: mesh.record(name).address for name in COMPONENTS}
        messages = GrpcMessages(5, texts)
        rpcs = sum(len(service.methods) for services in SERVICES.values() for service in services)
        sent = await grpc_messages.send_all(addresses, id_of(mesh.home), messages, 3 * rpcs)
        url = httpx.URL(mesh.http_address)
        answered = await http_requests.send_all(url.host, url.port or 80, HttpRequests(5, texts), 120)
        async with httpx.AsyncClient(trust_env=False) as client:  # the canary sings
            with pytest.raises(httpx.HTTPError):
                await client.get(texts[0])
        assert len(inside.visits) == 1, inside.visits
        assert sent.wrong == answered.wrong == [] and sent.statuses["OK"] and answered.statuses["200"]
