"""JUnit report of a run, for continuous integration."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from openclaw_rl.conformance.frame import Level, Outcome
from openclaw_rl.conformance.runner import Report


def write(report: Report, file: Path) -> None:
    """Write it. A check that is a "should" and failed counts as passed there, with what was seen as its output.

    Raises:
        OSError: the file can't be written.
    """
    suite = ET.Element("testsuite", name=f"conformance.{report.service}", hostname=report.address,
                       tests=str(len(report.results)), failures=str(len(report.of(Outcome.FAILED, Level.MUST))),
                       errors=str(len(report.of(Outcome.ERROR)) + bool(report.could_not)),
                       skipped=str(len(report.of(Outcome.SKIPPED))), time=f"{report.seconds:.3f}")
    if report.could_not:
        case = ET.SubElement(suite, "testcase", classname=f"conformance.{report.service}", name="reach", time="0")
        ET.SubElement(case, "error", message=_text(report.could_not))
    for one in report.results:
        case = ET.SubElement(suite, "testcase", classname=f"conformance.{report.service}", name=one.check.id,
                             time=f"{one.seconds:.3f}")
        if one.outcome is Outcome.SKIPPED:
            ET.SubElement(case, "skipped", message=_text(one.seen))
        elif one.outcome is Outcome.ERROR:
            ET.SubElement(case, "error", message=_text(one.seen))
        elif one.outcome is Outcome.FAILED and one.check.level is Level.MUST:
            ET.SubElement(case, "failure", message=_text(one.check.obligation)).text = _text(
                f"seen: {one.seen}\ncontract: {one.check.where}")
        elif one.outcome is Outcome.FAILED:
            ET.SubElement(case, "system-out").text = _text(f"{one.check.obligation}\nseen: {one.seen}")
    ET.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)


def _text(text: str) -> str:
    """Replace characters that XML does not allow."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)
