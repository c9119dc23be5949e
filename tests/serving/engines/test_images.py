"""Addresses of pictures in requests for an API: none leads into a private network."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.engines.openai.images import MOST_HOSTS, check_images
from openclaw_rl.v1.turn_pb2 import ChatMessage, ContentPart

PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.7"


def asked(*urls: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content="no picture"),
            ChatMessage(role="user", parts=[ContentPart(text="Look"), *(ContentPart(image_url=url) for url in urls)])]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS: public.test, inside.test, and both.test, which stands for both."""
    known = {"public.test": [PUBLIC], "inside.test": [PRIVATE], "both.test": [PUBLIC, PRIVATE]}

    async def getaddrinfo(self: Any, host: str, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(host)
        return [(0, 0, 0, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("url", [
    "data:image/png;base64,AA==", "DATA:image/png,x", "http://public.test/a.png", "https://public.test:8443/a?b#c",
    f"http://{PUBLIC}/", "https://[2606:2800:220:1::1]/", "https://nobody.knows.test/a.png", "http://PUBLIC.TEST./"])
async def test_public_pictures_are_passed_on(url: str) -> None:
    await check_images(asked(url), ())


@pytest.mark.parametrize("url", [
    "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:50051/", "http://localhost/", "http://LOCALHOST./",
    "http://a.localhost/", "http://metadata.google.internal/", "http://printer.local/", "http://router/", "http://10.1.2.3/",
    "http://192.168.0.1/", "http://100.64.0.1/", "http://0.0.0.0/", "http://0/", "http://127.1/", "http://0x7f000001/",
    "http://2130706433/", "http://017700000001/", "http://[::1]/", "http://[::]/", "http://[fe80::1%25eth0]/",
    "http://[::ffff:127.0.0.1]/", "http://[fd00::1]/", "http://[2002:7f00:1::]/", "http://224.0.0.1/", "http://inside.test/",
    "http://both.test/", f"http://{PUBLIC}@127.0.0.1/", f"http://127.0.0.1\\@{PUBLIC}/", f"http://127.0.0.1\t@{PUBLIC}/",
    "http://127%2e0.0.1/", "http:///a", "http://[::1/", "file:///etc/passwd", "ftp://public.test/", "gopher://x",
    "//public.test/a", "a.png", "", "HTTP://127.0.0.1/"])
async def test_others_are_refused(url: str) -> None:
    with pytest.raises(MeshError) as caught:
        await check_images(asked("data:x", url), ())
    assert caught.value.violations[0][0] == "messages[1].content[2].image_url"
    assert "image_hosts" in caught.value.message


async def test_the_configuration_allows_hosts() -> None:
    await check_images(asked("http://127.0.0.1:8000/a.png", "http://camera/now"), {"127.0.0.1", "camera"})
    with pytest.raises(MeshError):
        await check_images(asked("http://camera/now", "http://127.0.0.2/"), {"127.0.0.1", "camera"})


async def test_a_request_names_so_many_hosts() -> None:
    urls = [f"http://h{number}.test/" for number in range(MOST_HOSTS + 1)]
    await check_images(asked(*urls[1:], *urls[1:]), ())
    with pytest.raises(MeshError, match=f"at most {MOST_HOSTS}"):
        await check_images(asked(*urls), ())
