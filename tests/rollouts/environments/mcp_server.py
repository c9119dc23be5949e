"""An MCP server made with the official package: `python mcp_server.py` speaks over stdin and stdout, with a port it
serves HTTP."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from pydantic import Field

server = MCPServer("tests")
notes: list[str] = []
PNG = (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89\0\0\0\nIDATx\x9cc\0\1\0"
       b"\0\5\0\1\r\n-\xb4\0\0\0\0IEND\xaeB`\x82")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def note(text: Annotated[str, Field(min_length=1)]) -> str:
    """Write a note; tells all of this session."""
    notes.append(text)
    return " ".join(notes)


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=PNG, format="png")


@server.tool()
def weather(city: str) -> dict[str, int]:
    """Something structured."""
    return {"degrees": len(city)}


@server.tool(name="say.it")
def say(text: str, times: int = 1) -> str:
    """Say a text many times."""
    return text * times


@server.tool()
def die() -> str:
    """End the server."""
    print("I have had enough", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def hang(seconds: float) -> str:
    """Take a long time, and be deaf."""
    time.sleep(seconds)
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
