"""JUnit XML for CI servers: one test case per scenario, each in a suite of its own.

The file is valid by junit-10.xsd, the schema of Jenkins's xUnit plugin, which skips a file that is not. It allows properties
in a suite, but not in a test case: hence the suites.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.slices.cut import name_of
from onceproof.reports import commands
from onceproof.reports.report import RunSet, ScenarioResult, reports
from onceproof.reports.xml_text import legal


@dataclass(frozen=True)
class Problem:
    """Why a test case did not pass."""

    tag: str
    """``failure`` or ``error``"""
    kind: str
    message: str
    text: str


@dataclass(frozen=True)
class Case:
    """One test case."""

    name: str
    seconds: float
    properties: dict[str, str]
    problem: Problem | None
    output: str


@reports.register("junit")
class JunitReport:
    """One test case per scenario, never ``skipped``, because inconclusive is not a pass.

    A scenario that did not pass is a ``failure`` of type ``violated``, ``inconclusive`` or ``held`` (held, but another verdict
    was expected); a scenario that could not be judged is an ``error``.
    """

    about: ClassVar[str] = "JUnit XML, one test case per scenario"

    def render(self, runs: RunSet) -> str:
        return document(_case(result, runs) for result in runs.results)


def document(cases: Iterable[Case]) -> str:
    """The XML file with these test cases."""
    suites = ET.Element("testsuites", name="onceproof")
    seconds = 0.0
    for case in cases:
        seconds += case.seconds
        suites.append(_suite(case))
    suites.attrib |= {
        "tests": str(len(suites)),
        **{f"{tag}s": str(len(suites.findall(f"testsuite/testcase/{tag}"))) for tag in ("failure", "error")},
        "time": f"{seconds:.3f}",
    }
    ET.indent(suites)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(suites, encoding='unicode')}\n"


def _suite(case: Case) -> ET.Element:
    tag = None if case.problem is None else case.problem.tag
    time = f"{case.seconds:.3f}"
    counts = {"tests": "1", "failures": str(int(tag == "failure")), "errors": str(int(tag == "error")), "skipped": "0"}
    made = ET.Element("testsuite", {"name": legal(case.name), **counts, "time": time})
    holder = ET.SubElement(made, "properties")
    for name, value in case.properties.items():
        ET.SubElement(holder, "property", name=name, value=legal(value))
    test = ET.SubElement(made, "testcase", classname="onceproof", name=legal(case.name), time=time)
    if (problem := case.problem) is not None:
        wrong = ET.SubElement(test, problem.tag, type=problem.kind, message=legal(_first_line(problem.message)))
        wrong.text = legal(problem.text)
    ET.SubElement(test, "system-out").text = legal(case.output)
    return made


def properties(outcome: str, verdict: Verdict | None, run_dir: Path | None) -> dict[str, str]:
    """What a suite says about the run of its test case."""
    found = {"verdict": outcome}
    if run_dir is not None:
        found["run"] = str(run_dir)
    if verdict is not None:
        found["seed"] = str(verdict.seed)
        if verdict.word != outcome:
            found["summary"] = verdict.word
    return found


def _case(result: ScenarioResult, runs: RunSet) -> Case:
    verdict, outcome = result.verdict, result.outcome.value
    problem = None
    if result.error is not None or verdict is None:
        message = result.error.message if result.error is not None else "no verdict"
        problem = Problem("error", outcome, message, str(result.error or message))
    elif not runs.passed(result):
        problem = Problem("failure", outcome, _message(result, runs), arguments(verdict, result.run_dir))
    return Case(
        result.scenario,
        verdict.seconds if verdict is not None else 0.0,
        properties(outcome, verdict, result.run_dir),
        problem,
        terminal_text(result),
    )


def arguments(verdict: Verdict, run_dir: Path | None) -> str:
    """The reasons, and for each violating finding its first witness."""
    return "\n".join([*verdict.reasons, *_arguments(verdict, run_dir)])


def _arguments(verdict: Verdict, run_dir: Path | None) -> Iterator[str]:
    """For each violating finding: its first witness, and the command that judges its slice."""
    for finding in verdict.findings:
        if finding.violates and finding.witnesses:
            yield f"\n{finding.anomaly} in {finding.output}, for example:\n{finding.witnesses[0].argument}"
            if run_dir is not None and name_of(finding) in verdict.slices:
                yield commands.check(run_dir / verdict.slices[name_of(finding)])


def _message(result: ScenarioResult, runs: RunSet) -> str:
    assert result.verdict is not None
    found = ", ".join(f"{name} {count}" for name, count in result.verdict.anomalies().items())
    what = f"{result.outcome.value}: {found}" if found else result.outcome.value
    if runs.by_expectation:
        what += f"; expected {', '.join([result.expect.verdict, *result.expect.anomalies])}"
    elif result.outcome is Outcome.INCONCLUSIVE and result.verdict.reasons:
        what += f": {_first_line(result.verdict.reasons[0])}"
    return what


def terminal_text(result: ScenarioResult) -> str:
    return reports.get("terminal")().render(RunSet((result,)))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
