"""Results of MCP tools as results of a call."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from openclaw_rl.rollouts.environments.tool_call.environment import CallResult
from openclaw_rl.rollouts.environments.untrusted_text import MOST, inert

#: Bytes of a picture.
MOST_PICTURE = 4 << 20
_PNG = b"\x89PNG\r\n\x1a\n"


def call_result(result: Any) -> CallResult:
    """Convert a `CallToolResult`: text as it is, a PNG as the picture, other content by description."""
    texts: list[str] = []
    picture = b""
    left = MOST
    for block in result.content[:200]:
        if left <= 0:
            texts.append("[more content is left out]")
            break
        text = ""
        if block.type == "text":
            text = inert(block.text, left)
        elif block.type == "image":
            data = _decoded(block.data)
            text = f"[picture, {inert(block.mime_type, 50)}, {len(data):,} bytes]"
            if not picture and data.startswith(_PNG) and len(data) <= MOST_PICTURE:
                picture = data
        elif block.type == "audio":
            text = f"[sound, {inert(block.mime_type, 50)}]"
        elif block.type == "resource_link":
            text = f"[resource {inert(str(block.uri), 500)}]"
        elif block.type == "resource":
            inside = getattr(block.resource, "text", None)
            named = f"[resource {inert(str(block.resource.uri), 500)}]"
            text = inert(inside, left) if isinstance(inside, str) else named
        left -= len(text)
        texts.append(text)
    if not texts and result.structured_content is not None:
        texts.append(inert(json.dumps(result.structured_content, ensure_ascii=False, default=repr)))
    text = "\n".join(texts)
    return CallResult(f"Error: {text}", True, picture) if result.is_error else CallResult(text, False, picture)


def _decoded(data: str) -> bytes:
    if len(data) > MOST_PICTURE * 2:
        return b""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return b""
