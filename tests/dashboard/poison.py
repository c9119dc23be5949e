"""Messages whose every text would run a script in a page that showed it as anything but text."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

#: Each way in which a text becomes a script: an element, an event, the end of what holds it, an address, a template.
SCRIPT = ('</textarea></title></pre></option></script><script>window.hacked=1</script>'
          '<img src=x onerror="window.hacked=1"><svg onload=window.hacked=1>" onmouseover="window.hacked=1" '
          "' autofocus onfocus='window.hacked=1' [x](javascript:window.hacked=1) ![x](x\" onerror=\"window.hacked=1) "
          '{{constructor.constructor("window.hacked=1")()}} `${window.hacked=1}` javascript:window.hacked=1')
#: The same for an id, in a name or an address: ids are any printable text.
ID = '"><img src=x onerror=window.hacked=1><script>window.hacked=1</script>'
#: The texts of these are compared or read by the dashboard, not only shown.
_READ = {"address", "http_address", "page_token", "next_page_token", "mesh_id", "type", "kind"}


def poisoned_id(value: str) -> str:
    """An id that is as bad as an id may be; the same for the same."""
    return value + ID if value else value


def poison(message: Message) -> None:
    """Make every text in a message as bad, and keep its ids' links."""
    for descriptor in message.DESCRIPTOR.fields:
        name, value = descriptor.name, getattr(message, descriptor.name)
        kind = descriptor.message_type
        if kind is not None and kind.GetOptions().map_entry:
            _poison_map(value, kind.fields_by_name["value"])
        elif kind is not None:
            for each in value if descriptor.is_repeated else [value] if message.HasField(name) else []:
                poison(each)
        elif descriptor.type == FieldDescriptor.TYPE_STRING and name not in _READ:
            if descriptor.is_repeated:
                values = [_text(name, each) for each in value]
                del value[:]
                value.extend(values)
            elif value or (not descriptor.has_presence and not _is_id(name)):
                setattr(message, name, _text(name, value))


def _poison_map(value: Any, of: FieldDescriptor) -> None:
    if of.type == FieldDescriptor.TYPE_STRING:
        for key in list(value):
            value[key] += SCRIPT
        value[SCRIPT] = SCRIPT
    elif of.message_type is None:
        value[SCRIPT] = 1
    else:
        for each in value.values():
            poison(each)


def _is_id(name: str) -> bool:
    return name in ("id", "ids") or name.endswith(("_id", "_ids"))


def _text(name: str, value: str) -> str:
    if _is_id(name):
        return poisoned_id(value)
    if name.endswith("json"):
        return json.dumps({SCRIPT: SCRIPT})
    return value + SCRIPT
