"""The API reference, protos/reference: pages in Markdown, made of the comments in the .proto files.

    python -m generation.reference DESCRIPTORS FOLDER

DESCRIPTORS is a FileDescriptorSet with source info. Who may call an RPC is said by
`openclaw_rl.rpc.auth.authorize.TABLE`, and what an error's reason means by `openclaw_rl.rpc.errors.CATALOGUE`.
"""
from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from openclaw_rl.rpc.auth.authorize import TABLE
from openclaw_rl.rpc.errors import CATALOGUE, DOMAIN
from openclaw_rl.runtime.home import COMPONENTS
from tools.generation.contract import Contract, Rpc, Service, Type, Value

_MADE = "<!-- Made by tools/generate from the comments in protos/openclaw_rl/v1. Do not edit. -->\n"
_PORTS = {"PolicyService": "50051", "EnvironmentService": "50052", "JudgeService": "50053", "TrainerService": "50054",
          "ComponentService": "each of the four"}
_STREAMS = {(False, False): "", (False, True): "answers", (True, False): "requests", (True, True): "both ways"}


class Pages:
    """Renders one contract."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self._services = sorted(contract.services, key=lambda service: list(_PORTS).index(service.name))
        self._own = contract.requests_and_responses()
        self._page = {name: f"{_slug(service.name)}.md" for service in contract.services for rpc in service.rpcs
                      for name in (rpc.request, rpc.response)}

    def all(self) -> dict[str, str]:
        """Content by name of the page."""
        services = {f"{_slug(service.name)}.md": self._service(service) for service in self._services}
        return {"README.md": self._index(), **services, "messages.md": self._messages(), "errors.md": self._errors()}

    def _index(self) -> str:
        rows = [f"| [{s.name}]({_slug(s.name)}.md) | {_PORTS[s.name]} | {_cell(s.comment)} | "
                + ", ".join(f"[{rpc.name}]({_slug(s.name)}.md#{rpc.name.lower()})" for rpc in s.rpcs) + " |"
                for s in self._services]
        return "\n".join([
            _MADE, "# API reference\n", "| service | port | | RPCs |", "|---|---|---|---|", *rows, "",
            "[Messages and enums](messages.md) that several RPCs share; [reasons of errors](errors.md); how to call "
            "each RPC without code: [EXAMPLES.md](../EXAMPLES.md).\n",
            "A request or response of one RPC is described with that RPC. In the tables of fields, *optional* tells an "
            "unset field from one with the value 0; *one of NAME* are fields of which one is set; all other fields may "
            "be left out, which is the same as 0, false or empty.\n",
            "## Conventions\n", self.contract.comment, ""])

    def _service(self, service: Service) -> str:
        rows = [f"| [{rpc.name}](#{rpc.name.lower()}) | {_STREAMS[rpc.streams]} | {_cell(_first(rpc.comment))} |"
                for rpc in service.rpcs]
        return "\n".join([
            _MADE, f"# {service.name}\n", service.comment + "\n",
            f"`openclaw_rl.v1.{service.name}` in [{service.file}](../openclaw_rl/v1/{service.file}), port "
            f"{_PORTS[service.name]}.\n",
            "| RPC | stream | |", "|---|---|---|", *rows, "",
            *(line for rpc in service.rpcs for line in self._rpc(service, rpc))])

    def _rpc(self, service: Service, rpc: Rpc) -> Iterable[str]:
        sent, answered = (f"{'stream of ' if many else ''}[{_short(name)}](#{_short(name).lower()})"
                          for many, name in zip(rpc.streams, (rpc.request, rpc.response), strict=True))
        rule = TABLE[f"/openclaw_rl.v1.{service.name}/{rpc.name}"]
        roles = ", ".join(f"`{role}`" for role in (*COMPONENTS, "operator") if role in rule.roles)
        yield f"## {rpc.name}\n"
        yield f"{sent} → {answered}\n"
        yield self._with_reasons(rpc) + "\n"
        yield (f"May be called with a certificate of {roles}; " +
               (f"with a key of scope `{rule.scope}`.\n" if rule.scope else "with no key.\n"))
        for name in dict.fromkeys((rpc.request, rpc.response)):
            yield from self._type(self.contract.types[name], "###", f"{_slug(service.name)}.md")

    def _with_reasons(self, rpc: Rpc) -> str:
        """The comment with its reasons linked.

        Raises:
            SystemExit: one is not in the catalogue.
        """
        def link(found: re.Match[str]) -> str:
            words = re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b|\bPINNED\b|\bPAUSED\b", found[0])
            if unknown := [word for word in words if word not in CATALOGUE]:
                raise SystemExit(f"{rpc.name}: {', '.join(unknown)} is no reason of openclaw_rl.rpc.errors.CATALOGUE")
            return re.sub("|".join(words) or "$^", lambda word: f"[{word[0]}](errors.md#{word[0].lower()})", found[0])

        return re.sub(r"Reasons: [^.]*", link, rpc.comment)

    def _messages(self) -> str:
        shared = [type for type in self.contract.types.values() if type.name not in self._own]
        files = dict.fromkeys(type.file for type in shared)
        lines = [_MADE, "# Messages and enums\n"]
        for file in files:
            inside = [type for type in shared if type.file == file]
            lines.append(f"- [{file}](../openclaw_rl/v1/{file}): "
                         + ", ".join(f"[{_short(type.name)}](#{_short(type.name).lower()})" for type in inside))
        lines.append("")
        for type in shared:
            lines += self._type(type, "##", "messages.md")
        return "\n".join(lines)

    def _type(self, type: Type, heading: str, page: str) -> Iterable[str]:
        yield f"{heading} {_short(type.name)}\n"
        yield type.comment + "\n"
        if not type.values:
            yield "It has no fields.\n"
            return
        yield "| value | number | |" if type.kind == "enum" else "| field | type | number | |"
        yield "|---|---|---|" if type.kind == "enum" else "|---|---|---|---|"
        for value in type.values:
            middle = "" if type.kind == "enum" else f"{self._field_type(value, page)} | "
            yield f"| `{value.name}` | {middle}{value.number} | {_cell(value.comment)} |"
        yield ""

    def _field_type(self, value: Value, page: str) -> str:
        shown = self._link(value.type, page)
        if value.label == "map":
            return f"map of {value.key} to {shown}"
        return f"{f'*{value.label}* ' if value.label not in ('', 'repeated') else value.label + ' '}{shown}".strip()

    def _link(self, name: str, page: str) -> str:
        if name not in self.contract.types:
            return name  # a scalar, or google.protobuf.X
        there = self._page.get(name, "messages.md")
        return f"[{_short(name)}]({'' if there == page else there}#{_short(name).lower()})"

    def _errors(self) -> str:
        rpcs = [(service, rpc) for service in self._services for rpc in service.rpcs]
        ours = {reason: entry for reason, entry in CATALOGUE.items() if entry[1] != "An error of gRPC."}
        lines = [
            _MADE, "# Reasons of errors\n",
            f"`ErrorInfo.reason` of each failure, with the domain `{DOMAIN}`; they never change their meaning. What "
            "comes from gRPC itself, or from a component that gives no details, has its code's name as the reason. A "
            "failure with a RetryInfo, or of code UNAVAILABLE or ABORTED, may go away: the same call is worth "
            "repeating then.\n"]
        for reason, (code, meaning) in ours.items():
            named = [f"[{rpc.name}]({_slug(service.name)}.md#{rpc.name.lower()})" for service, rpc in rpcs
                     if (said := re.search(r"Reasons: [^.]*", rpc.comment)) and re.search(rf"\b{reason}\b", said[0])]
            where = f" Named at {', '.join(named)}." if named else ""
            lines += [f"## {reason}\n", f"`{code.name}`. {meaning}{where}\n"]
        return "\n".join(lines)


def _slug(service: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", service).lower()


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _first(comment: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=\.)\s", comment, maxsplit=1)[0]


def _cell(comment: str) -> str:
    return comment.replace("\n\n", "<br>").replace("|", "\\|")


def main() -> None:
    source, out = map(Path, sys.argv[1:])
    for name, content in Pages(Contract.load(source)).all().items():
        (out / name).write_text(content.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
