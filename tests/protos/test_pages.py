"""The pages beside the contract forget nothing of it and lead nowhere wrong; versions agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from openclaw_rl.rpc.auth.authorize import TABLE
from openclaw_rl.rpc.contract import CONTRACT_VERSION
from openclaw_rl.rpc.errors import CATALOGUE
from openclaw_rl.v1 import component_pb2, environment_pb2, judge_pb2, policy_pb2, trainer_pb2
from tests.protos.examples import SECTIONS
from tests.protos.generators import ROOT

PROTOS = ROOT / "protos"
DESCRIPTOR_SET = ROOT / "openclaw_rl/v1/openclaw_rl.v1.binpb"
SERVICES = [service for module in (policy_pb2, environment_pb2, judge_pb2, trainer_pb2, component_pb2)
            for service in module.DESCRIPTOR.services_by_name.values()]
RPCS = [f"{service.name}/{method.name}" for service in SERVICES for method in service.methods]
PAGES = sorted([*PROTOS.glob("*.md"), *PROTOS.glob("reference/*.md")])
#: A client's source files, and the name of its constant there.
CLIENTS = {"go": "ContractVersion", "java": "CONTRACT_VERSION", "rust": "CONTRACT_VERSION",
           "typescript": "CONTRACT_VERSION"}
ENDINGS = {"go": "*.go", "java": "*.java", "rust": "*.rs", "typescript": "*.ts"}


def test_every_rpc_has_its_examples() -> None:
    assert sorted(heading for heading in SECTIONS if heading) == sorted(RPCS)
    for rpc in RPCS:
        grpcurl, buf = SECTIONS[rpc]
        assert grpcurl.startswith("grpcurl ") and grpcurl.endswith(f" openclaw_rl.v1.{rpc}")
        assert buf.startswith("buf curl ") and buf.endswith(f"/openclaw_rl.v1.{rpc}")
        data = [re.findall(r"-d '(.*)'", line) for line in (grpcurl, buf)]
        assert data[0] == data[1], "both lines ask for the same"


def test_every_rpc_is_in_the_reference() -> None:
    for service in SERVICES:
        slug = re.sub(r"(?<!^)(?=[A-Z])", "-", service.name).lower()
        page = (PROTOS / f"reference/{slug}.md").read_text()
        for method in service.methods:
            part = re.split(rf"^## {method.name}$", page, flags=re.M)[1].split("\n## ")[0]
            rule = TABLE[f"/{service.full_name}/{method.name}"]
            assert all(f"`{role}`" in part for role in rule.roles)
            assert f"scope `{rule.scope}`" in part if rule.scope else "with no key" in part
            assert ("stream of [" in part) == (method.client_streaming or method.server_streaming)
            for type in (method.input_type, method.output_type):
                assert f"### {type.name}\n" in part
                assert all(f"| `{field.name}` |" in part for field in type.fields)


def test_every_message_and_reason_is_in_the_reference() -> None:
    text = "".join(page.read_text() for page in PROTOS.glob("reference/*.md"))
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes())
    names = {kind.name for file in descriptors.file if file.package == "openclaw_rl.v1"
             for kind in (*file.message_type, *file.enum_type)}
    headings = set(re.findall(r"^#{2,3} (\w+)$", text, re.M))
    assert len(names) > 100 and not names - headings
    assert not {reason for reason, (_, meaning) in CATALOGUE.items() if meaning != "An error of gRPC."} - headings


def test_the_descriptor_set_is_whole_and_has_the_comments() -> None:
    """grpcurl and others need what is imported, too; reflection shows the comments."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes()).file
    there = {file.name for file in files}
    assert all(set(file.dependency) <= there for file in files)
    assert {path.name for path in PROTOS.glob("openclaw_rl/v1/*.proto")} == {
        Path(file.name).name for file in files if file.package == "openclaw_rl.v1"}
    assert all(file.HasField("source_code_info") for file in files if file.package == "openclaw_rl.v1")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROTOS)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if anchor:
            headings = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
                        for heading in re.findall(r"^#+ (.*)$", there.read_text(), re.M)}
            assert anchor in headings, f"{target}#{anchor}"


def test_versions_agree() -> None:
    version = (PROTOS / "VERSION").read_text().strip()
    assert re.fullmatch(r"\d+\.\d+", version)
    entries = re.findall(r"^## \[(\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (PROTOS / "CHANGELOG.md").read_text(), re.M)
    assert entries[0] == version == CONTRACT_VERSION, "CHANGELOG.md and openclaw_rl/rpc/contract.py"
    assert entries == sorted(entries, key=lambda entry: [*map(int, entry.split("."))], reverse=True)


@pytest.mark.parametrize("language", CLIENTS)
def test_the_clients_tell_the_same_version(language: str) -> None:
    folder = ROOT / "clients" / language
    pattern = re.compile(rf'\b{CLIENTS[language]}\b[^=\n]*=\s*"(\d+\.\d+)"')
    sources = [path for path in folder.rglob(ENDINGS[language])
               if not {"node_modules", "target", "dist", "gen", "test", "tests"} & {*path.relative_to(folder).parts}]
    found = {version for path in sources for version in pattern.findall(path.read_text())}
    assert found == {CONTRACT_VERSION}, f"clients/{language} has {found or 'no such constant'}"
