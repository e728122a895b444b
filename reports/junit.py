"""JUnit XML for CI servers: one test case per scenario.

Source: the schema that Jenkins publishes (junit-10.xsd) and what pytest writes (properties inside a test case).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.slices.cut import name_of
from onceproof.reports.report import RunSet, ScenarioResult, reports

# XML 1.0 cannot hold these characters even escaped, but job output does (colour codes, binary keys).
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@reports.register("junit")
class JunitReport:
    """One test case per scenario, never ``skipped``, because inconclusive is not a pass.

    A scenario that did not pass is a ``failure`` of type ``violated``, ``inconclusive`` or ``held`` (held, but another verdict
    was expected); a scenario that could not be judged is an ``error``.
    """

    about: ClassVar[str] = "JUnit XML, one test case per scenario"

    def render(self, runs: RunSet) -> str:
        suites = ET.Element("testsuites")
        suite = ET.SubElement(suites, "testsuite", name="onceproof")
        for result in runs.results:
            suite.append(_case(result, runs))
        kinds = [child.tag for case in suite for child in case]
        seconds = sum(r.verdict.seconds for r in runs.results if r.verdict is not None)
        suite.attrib |= {
            "tests": str(len(runs.results)),
            "failures": str(kinds.count("failure")),
            "errors": str(kinds.count("error")),
            "skipped": "0",
            "time": f"{seconds:.3f}",
        }
        ET.indent(suites)
        return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(suites, encoding='unicode')}\n"


def _case(result: ScenarioResult, runs: RunSet) -> ET.Element:
    seconds = result.verdict.seconds if result.verdict is not None else 0.0
    case = ET.Element("testcase", classname="onceproof", name=_clean(result.scenario), time=f"{seconds:.3f}")
    properties = {"verdict": result.outcome.value}
    if result.run_dir is not None:
        properties["run"] = str(result.run_dir)
    if result.verdict is not None:
        properties["seed"] = str(result.verdict.seed)
        if result.verdict.word != result.outcome.value:
            properties["summary"] = result.verdict.word
    holder = ET.SubElement(case, "properties")
    for name, value in properties.items():
        ET.SubElement(holder, "property", name=name, value=_clean(value))
    if result.error is not None or result.verdict is None:
        message = result.error.message if result.error is not None else "no verdict"
        wrong = ET.SubElement(case, "error", type=result.outcome.value, message=_clean(_first_line(message)))
        wrong.text = _clean(str(result.error or message))
    elif not runs.passed(result):
        wrong = ET.SubElement(case, "failure", type=result.outcome.value, message=_clean(_message(result, runs)))
        wrong.text = _clean("\n".join([*result.verdict.reasons, *_arguments(result.verdict, result.run_dir)]))
    ET.SubElement(case, "system-out").text = _clean(_terminal_text(result))
    return case


def _arguments(verdict: Verdict, run_dir: Path | None) -> Iterator[str]:
    """For each violating finding: its first witness, and the command that judges its slice."""
    for finding in verdict.findings:
        if finding.violates and finding.witnesses:
            yield f"\n{finding.anomaly} in {finding.output}, for example:\n{finding.witnesses[0].argument}"
            if run_dir is not None and name_of(finding) in verdict.slices:
                yield f"onceproof check {run_dir / verdict.slices[name_of(finding)]}"


def _message(result: ScenarioResult, runs: RunSet) -> str:
    assert result.verdict is not None
    found = ", ".join(f"{name} {count}" for name, count in result.verdict.anomalies().items())
    what = f"{result.outcome.value}: {found}" if found else result.outcome.value
    if runs.by_expectation:
        what += f"; expected {', '.join([result.expect.verdict, *result.expect.anomalies])}"
    elif result.outcome is Outcome.INCONCLUSIVE and result.verdict.reasons:
        what += f": {_first_line(result.verdict.reasons[0])}"
    return what


def _terminal_text(result: ScenarioResult) -> str:
    return reports.get("terminal")().render(RunSet((result,)))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
