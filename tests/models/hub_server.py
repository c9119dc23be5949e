"""A hub on this machine: the part of Hugging Face's API that a download uses."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

_COMMIT = "c" * 40


class Hub:
    """Serves the folders in `repositories` by their ids.

    Attributes:
        url: HF_ENDPOINT.
        tokens: of a gated repository, by id: the one that may read it.
        sent: bytes of each file's answers, in order, by path.
        break_after: bytes of a file after which its answer breaks off, once.
    """

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories = repositories
        self.tokens: dict[str, str] = {}
        self.sent: dict[str, list[int]] = {}
        self.break_after: dict[str, int] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                hub._answer(self)

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: Any) -> None:
        path = request.path.partition("?")[0]
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/\w+", path) or re.fullmatch(
            r"/([^/]+/[^/]+)/(resolve)/\w+/(.+)", path)
        if found is None or found[1] not in self.repositories:
            self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (token := self.tokens.get(found[1])) and request.headers.get("Authorization") != f"Bearer {token}":
            self._send(request, 403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif found[2] == "resolve":
            self._file(request, self.repositories[found[1]] / found[3], found[3])
        else:
            files = [{"type": "file", "rfilename": file.name, "path": file.name, "size": file.stat().st_size,
                      "oid": hashlib.sha1(file.read_bytes()).hexdigest()}
                     for file in sorted(self.repositories[found[1]].iterdir())]
            data: Any = files if found[2] == "tree" else {"id": found[1], "sha": _COMMIT, "siblings": files}
            self._send(request, 200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _file(self, request: Any, file: Path, name: str) -> None:
        if not file.is_file():
            self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": _COMMIT})
            return
        data = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": _COMMIT, "Accept-Ranges": "bytes"}
        status, start = 200, 0
        if wanted := re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", "")):
            status, start = 206, int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        sent = data[start:]
        if request.command == "GET":
            broken = self.break_after.pop(name, 0)
            self.sent.setdefault(name, []).append(broken or len(sent))
            if broken:
                self._send(request, status, sent[:broken], headers, length=len(sent))
                request.close_connection = True
                return
        self._send(request, status, sent, headers)

    def _send(self, request: Any, status: int, data: bytes, headers: dict[str, str], length: int | None = None) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data) if length is None else length)}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)
