"""An MCP server of the standard library alone, so that it runs in a sandbox; its tools behave as badly as they can."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request

TOOLS = {"count": {}, "garbage": {"lines": {"type": "integer"}}, "flood": {"megabytes": {"type": "integer"}}, "die": {},
         "hang": {}, "wrong": {}, "nasty": {}, "where": {}, "files": {}, "noise": {}}
count = 0


def answer(number: object, result: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")


def called(name: str, arguments: dict[str, int]) -> object:
    global count
    if name == "count":
        count += 1
    elif name == "garbage":
        os.write(1, b"\x1b[31mno message\n" * arguments["lines"])
    elif name == "flood":
        for _ in range(arguments["megabytes"]):
            os.write(1, b"x" * (1 << 20))
    elif name == "noise":
        for _ in range(100):
            os.write(2, b"y" * (1 << 20))
    elif name == "die":
        os.write(2, b"I have had enough\n")
        os._exit(3)
    elif name == "hang":
        time.sleep(3600)
    elif name == "wrong":
        return {"content": "no list", "isError": "maybe"}
    elif name == "nasty":
        return {"content": [{"type": "text", "text": "<script>alert(1)</script>\x1b]0;title\x07\x00\u202egnp\ud83d"},
                            {"type": "image", "data": "no base64!", "mimeType": "image/png\x1b[2J"}], "isError": True}
    elif name == "where":
        return {"content": [{"type": "text", "text": reached()}]}
    elif name == "files":
        return {"content": [{"type": "text", "text": " ".join(os.listdir("/root") if os.path.isdir("/root") else [])}]}
    return {"content": [{"type": "text", "text": str(count)}]}


def reached() -> str:
    try:
        with urllib.request.urlopen("http://198.51.100.1/", timeout=3):
            return "reached"
    except OSError as error:
        return f"not reached: {error}"


def main() -> None:
    if sys.argv[1:] == ["mute"]:
        time.sleep(3600)
    if sys.argv[1:] == ["ends"]:
        sys.exit("no such configuration")
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            answer(number, {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                            "serverInfo": {"name": "rough", "version": "1"}})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object", "properties": properties,
                                                    "required": list(properties)}}
                     for name, properties in TOOLS.items()]
            bad = [{"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"type": "nothing"}}}},
                   {"name": "submit", "description": "\x1b[31mred" + "z" * 5000, "inputSchema": {"type": "object"}}]
            answer(number, {"tools": tools + bad})
        elif method == "tools/call":
            answer(number, called(message["params"]["name"], message["params"].get("arguments") or {}))
        elif number is not None:
            os.write(1, json.dumps({"jsonrpc": "2.0", "id": number,
                                    "error": {"code": -32601, "message": "no such method"}}).encode() + b"\n")


if __name__ == "__main__":
    main()
