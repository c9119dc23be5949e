"""Every route with every method and every sort of key: what each needs, and nothing beside it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.auth.keys import KeyFile, KeyRing
from openclaw_rl.serving.entrypoints.openai.app import create_app
from tests.serving.entrypoints.conftest import OpenEntrypoint

#: Method and path of each route -> the scope that it needs; "": none.
ROUTES = {
    ("POST", "/v1/chat/completions"): "chat", ("POST", "/v1/completions"): "chat", ("POST", "/v1/feedback"): "chat",
    ("POST", "/v1/responses"): "chat", ("POST", "/v1/messages"): "chat",
    ("POST", "/v1/messages/count_tokens"): "chat", ("POST", "/tokenize"): "chat", ("POST", "/detokenize"): "chat",
          ("GET", "/v1/models"): "read", ("GET", "/v1/models/stub"): "read", ("GET", "/metrics"): "read",
          ("GET", "/healthz"): "", ("GET", "/health"): ""}
#: Scopes of a key -> scopes that it opens.
OPENS = {"chat": {"chat"}, "read": {"read"}, "admin": {"chat", "read", "admin"}, "chat,read": {"chat", "read"}}


async def test_every_route_with_every_sort_of_key(open_entrypoint: OpenEntrypoint, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    shown = {scopes: file.add(scopes.replace(",", "-"), scopes.split(","))[0] for scopes in OPENS}
    revoked, expired = file.add("revoked", ["admin"])[0], file.add("expired", ["admin"], time.time() + 0.01)[0]
    file.revoke("revoked")
    entrypoint = await open_entrypoint(ring=KeyRing(file.path))
    guard: Any = create_app(entrypoint.service, client_digest, entrypoint.access)
    served = {(method, route.path) for route in guard._app.routes for method in route.methods if method != "HEAD"}
    assert {(method, re.sub("/stub$", "/{model:path}", path)) for method, path in ROUTES} == served

    async with entrypoint.http() as http:
        async def status(method: str, path: str, key: str) -> int:
            return (await http.request(method, path, json={} if method == "POST" else None,
                                       headers={"Authorization": f"Bearer {key}"} if key else {})).status_code

        for (method, path), needed in ROUTES.items():
            for key in ("", "sk-guessed", revoked, expired):
                assert (await status(method, path, key) == 401) == bool(needed), (path, key)
            for scopes, key in shown.items():
                refused = bool(needed) and needed not in OPENS[scopes]
                assert (await status(method, path, key) == 403) == refused, (path, scopes)
                assert await status(method, path, key) != 401
            for other in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                if (other, path) not in ROUTES:
                    assert await status(other, path, shown["admin"]) == 405
