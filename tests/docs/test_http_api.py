"""The page on the HTTP API has every endpoint and field, and says of each what happens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from openclaw_rl.docs import LANGUAGES, Language, page_file
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.app import create_app
from openclaw_rl.serving.entrypoints.openai.fields import Fields
from openclaw_rl.serving.entrypoints.openai.formats import FORMATS
from openclaw_rl.serving.entrypoints.openai.requests import parse_chat, parse_completion
from openclaw_rl.serving.unsupported import UNSUPPORTED

_WORDS = {"en": ("works", "refused", "passed on"), "zh": ("可用", "拒绝", "转发")}


def _rows(language: Language) -> dict[str, tuple[str, ...]]:
    """Endpoints and fields -> what the embedded engine, SGLang and an API do with them, in English."""
    english = dict(zip(_WORDS[language], _WORDS["en"], strict=True))
    found = {}
    for line in page_file("http-api", language).read_text().splitlines():
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == 3 and cells[0] in english:
            found.update(dict.fromkeys(re.findall("`([^`]+)`", names), tuple(english[cell] for cell in cells)))
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_and_endpoint_has_a_row(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    get = Fields.get

    def noted(fields: Fields, key: str) -> Any:
        if fields.name("") == "":
            read.add(key)
        return get(fields, key)

    monkeypatch.setattr(Fields, "get", noted)
    parse_chat({"messages": [{"role": "user", "content": "Hi"}]}, {})
    parse_completion({"prompt": "Hi"}, {})
    app: Any = create_app(ChatService(None, "m"), lambda *_: "")  # type: ignore[arg-type]
    routes = {f"{method} {route.path}" for route in app._app.routes for method in route.methods - {"HEAD"}}
    rows = _rows(language)
    assert {name for name in rows if " " in name} == routes - {"GET /v1/models/{model:path}"}
    assert {name for name in rows if " " not in name} - {"messages"} == (read | set(UNSUPPORTED)) - {"messages"}
    refused = {name for name, (embedded, sglang, _) in rows.items() if "refused" in (embedded, sglang)}
    assert refused - {"messages"} == {*UNSUPPORTED, "suffix", *FORMATS}


def test_both_languages_say_the_same() -> None:
    assert _rows("zh") == _rows("en")
