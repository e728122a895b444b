"""Each file that a CI server or an editor reads, read by the tool that reads it there.

Needs actionlint on PATH, the Python packages of the group ``artefacts``, and in ``YAML_LANGUAGE_SERVER``, ``GITLAB_CI_LOCAL`` and
``NPM_GROOVY_LINT`` the paths of the scripts of these tools (``tox -e artefacts`` installs them). Without them the tests are skipped; with ``ONCEPROOF_TOOLS=1`` they fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

from onceproof.gate import junit as gate_junit
from onceproof.gate.session import GateResult, GateRow, Status
from onceproof.reports.report import RunSet, reports
from onceproof.scenario_files.schema import schema_text

# Of the sources: the wheel has no documents, no action and no hooks.
pytestmark = [pytest.mark.sources]

ROOT = Path(__file__).parents[2]


def _missing(what: str) -> NoReturn:
    if os.environ.get("ONCEPROOF_TOOLS") == "1":
        pytest.fail(f"{what}; ONCEPROOF_TOOLS=1 requires it")
    pytest.skip(what)


def yaml_blocks(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


# -- GitHub -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def actionlint(tmp_path: Path) -> Any:
    """Lints a workflow in a repository that has our action at its root; returns the messages."""
    program = shutil.which("actionlint")
    if program is None:
        _missing("no actionlint on PATH: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")
    folder = tmp_path / ".github/workflows"
    folder.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    shutil.copy(ROOT / "action.yml", tmp_path)

    def lint(workflow: str) -> list[str]:
        (folder / "ci.yml").write_text(workflow)
        command = [program, "-format", "{{json .}}", "-shellcheck=", "-pyflakes=", str(folder / "ci.yml")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 1), done.stderr
        return [error["message"] for error in json.loads(done.stdout)]

    return lint


@pytest.mark.parametrize("page", ["docs/ci.md", "docs/your-job.md"])
def test_actionlint_accepts_the_documented_workflows(page: str, actionlint: Any) -> None:
    workflows = [block for block in yaml_blocks(page) if re.search("^jobs:", block, re.MULTILINE)]
    assert workflows
    for workflow in workflows:
        assert actionlint(workflow) == []
        assert actionlint(workflow.replace("OWNER/onceproof@v1", "./")) == [], "the inputs are those of action.yml"


def test_actionlint_notices_an_input_that_the_action_does_not_have(actionlint: Any) -> None:
    workflow = next(block for block in yaml_blocks("docs/ci.md") if "uses: OWNER/onceproof@v1" in block)
    found = actionlint(workflow.replace("OWNER/onceproof@v1", "./").replace("budget:", "bugdet:"))
    assert len(found) == 1 and 'input "bugdet" is not defined in action "onceproof"' in found[0]


# -- GitLab -----------------------------------------------------------------------------------------------------------


def read_by_gitlab_ci(pipeline: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of gitlab-ci-local, which checks a pipeline with GitLab's schema and lists its jobs. It runs none."""
    script = Path(os.environ.get("GITLAB_CI_LOCAL", ""))
    if not script.is_file() or shutil.which("node") is None:
        _missing("GITLAB_CI_LOCAL does not name the script: npm install gitlab-ci-local")
    folder.mkdir()
    (folder / ".gitlab-ci.yml").write_text(pipeline)
    # It reads the names of the project and of the user from Git.
    for words in (
        "init --quiet",
        "config user.name tester",
        "config user.email tester@example.org",
        "remote add origin git@gitlab.example.org:team/project.git",
    ):
        subprocess.run(["git", *words.split()], cwd=folder, check=True, timeout=60)
    command = ["node", str(script), "--list"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_gitlab_ci_accepts_the_documented_pipeline(tmp_path: Path) -> None:
    (pipeline,) = [block for block in yaml_blocks("docs/ci.md") if "codequality:" in block]
    code, text = read_by_gitlab_ci(pipeline, tmp_path / "right")
    assert code == 0 and "json schema validated" in text and re.search("^exactly-once ", text, re.MULTILINE), text
    code, text = read_by_gitlab_ci(pipeline.replace("artifacts:", "artefacts:"), tmp_path / "wrong")
    assert code != 0 and "'artefacts' property is not expected" in text


# -- Jenkins ----------------------------------------------------------------------------------------------------------


def read_by_groovy(pipeline: str, folder: Path) -> list[str]:
    """The errors that npm-groovy-lint finds in a Jenkinsfile. Like Jenkins, it parses it with Groovy's compiler."""
    script = Path(os.environ.get("NPM_GROOVY_LINT", ""))
    if not script.is_file():
        _missing("NPM_GROOVY_LINT does not name the script: npm install npm-groovy-lint")
    folder.mkdir()
    (folder / "Jenkinsfile").write_text(pipeline)
    # --noserver: it would leave a server running, for the next file.
    command = ["node", str(script), "--noserver", "--failon", "none", "--output", "json", "Jenkinsfile"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=100)
    ((_, found),) = json.loads(done.stdout)["files"].items()
    return [one["msg"] for one in found["errors"] if one["severity"] == "error"]


@pytest.mark.timeout(220)
def test_groovy_accepts_the_documented_jenkins_pipeline(tmp_path: Path) -> None:
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    (pipeline,) = re.findall(r"^```groovy\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert read_by_groovy(pipeline, tmp_path / "right") == []
    (problem,) = read_by_groovy(pipeline.replace("steps {", "steps "), tmp_path / "wrong")
    assert "Unexpected input" in problem


# -- pre-commit -------------------------------------------------------------------------------------------------------


def pre_commit(command: str, file: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", command, str(file)], capture_output=True, text=True, timeout=60
    )
    if "No module named pre_commit" in done.stderr:
        _missing("no pre-commit: uv sync --group artefacts")
    return done


def test_pre_commit_accepts_the_hooks_and_the_documented_configuration(tmp_path: Path) -> None:
    done = pre_commit("validate-manifest", ROOT / ".pre-commit-hooks.yaml")
    assert done.returncode == 0, done.stdout
    (config,) = [block for block in yaml_blocks("docs/ci.md") if block.startswith("repos:")]
    (tmp_path / "config.yaml").write_text(config)
    done = pre_commit("validate-config", tmp_path / "config.yaml")
    assert done.returncode == 0, done.stdout
    broken = (ROOT / ".pre-commit-hooks.yaml").read_text().replace("language: python", "language: pyton")
    (tmp_path / "hooks.yaml").write_text(broken)
    assert pre_commit("validate-manifest", tmp_path / "hooks.yaml").returncode != 0


# -- JUnit ------------------------------------------------------------------------------------------------------------


def read_junit(text: str) -> list[Any]:
    """The suites of the file, each with one test case, as junitparser reads them, after the schema of Jenkins has accepted it."""
    try:
        from junitparser import JUnitXml
    except ImportError:
        _missing("no junitparser: uv sync --group artefacts")
    assert invalid_by_jenkins(text) == []
    suites = list(JUnitXml.fromstring(text.encode()))
    for suite in suites:
        counted = (suite.tests, suite.failures, suite.errors, suite.skipped, suite.time)
        suite.update_statistics()
        now = (suite.tests, suite.failures, suite.errors, suite.skipped, suite.time)
        assert counted[:4] == now[:4] and counted[4] == pytest.approx(now[4]), "its counts are right"
    assert [len(list(suite)) for suite in suites] == [1] * len(suites)
    return suites


def invalid_by_jenkins(text: str) -> list[str]:
    """What Jenkins's xUnit plugin has against the file: it checks it with this schema, and skips a file that is not valid.

    The schema (MIT licence, in the file) is unchanged from the source distribution of pytest 9.2.0, which checks its own files with it.
    """
    try:
        from xmlschema import XMLSchema
    except ImportError:
        _missing("no xmlschema: uv sync --group artefacts")
    schema = XMLSchema(str(Path(__file__).parent / "schemas" / "junit-10.xsd"))
    return [f"{error.path}: {error.reason}" for error in schema.iter_errors(text)]


def test_the_schema_of_jenkins_refuses_properties_in_a_test_case() -> None:
    case = "<testcase name='a'><properties><property name='b' value='c'/></properties></testcase>"
    suite = "<testsuites><testsuite name='s' tests='1' failures='0' errors='0'>{}</testsuite></testsuites>"
    (problem,) = invalid_by_jenkins(suite.format(case))
    assert problem.startswith("/testsuites/testsuite/testcase: Unexpected child") and "properties" in problem
    assert invalid_by_jenkins(suite.format("<testcase name='a'/>")) == []


def test_junitparser_reads_the_report_of_a_run(everything: RunSet) -> None:
    suites = {suite.name: suite for suite in read_junit(reports.get("junit")().render(everything))}
    cases = {name: next(iter(suite)) for name, suite in suites.items()}
    assert [case.name for case in cases.values()] == list(suites)
    assert [(name, [type(one).__name__ for one in case.result]) for name, case in cases.items()] == [
        ("good", []),
        ("naive", []),
        ("vague", ["Failure"]),
        ("broken", ["Error"]),
    ]
    assert {one.name: one.value for one in suites["good"].properties()}["verdict"] == "held"
    assert cases["broken"].result[0].message == "no Java"


def test_junitparser_reads_the_report_of_a_gate() -> None:
    rows = tuple(GateRow(f"{status}.yaml", "held", status, "why \x1b <&>") for status in Status)
    kinds = {
        suite.name: [type(one).__name__ for case in suite for one in case.result]
        for suite in read_junit(gate_junit.render(GateResult(rows)))
    }
    assert kinds == {
        f"{status}.yaml": [] if status is Status.PASSED else ["Error"] if status is Status.ERROR else ["Failure"]
        for status in Status
    }


# -- editors ----------------------------------------------------------------------------------------------------------


class LanguageServer:
    """A client of yaml-language-server on its standard streams."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._folder = folder
        command = ["node", str(script), "--stdio"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        self.diagnostics: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        self.ask("initialize", processId=os.getpid(), rootUri=self._folder.as_uri(), capabilities={})
        self._send(method="initialized", params={})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self, name: str, text: str) -> str:
        (self._folder / name).write_text(text)
        uri = (self._folder / name).as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        return uri

    def problems(self, uri: str) -> list[str]:
        while uri not in self.diagnostics:
            self._read()
        return self.diagnostics[uri]

    def completions(self, uri: str, line: int, character: int) -> set[str]:
        position = {"line": line, "character": character}
        found = self.ask("textDocument/completion", textDocument={"uri": uri}, position=position)
        return {item["label"] for item in (found["items"] if isinstance(found, dict) else found)}

    def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        number = self._number
        self._send(id=number, method=method, params=params)
        while (answer := self._read()).get("id") != number or "method" in answer:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while (header := self._process.stdout.readline().strip()) or not size:
            assert header, "the server has ended"
            if header.lower().startswith(b"content-length:"):
                size = int(header.partition(b":")[2])
        message: dict[str, Any] = json.loads(self._process.stdout.read(size))
        if message.get("method") == "textDocument/publishDiagnostics":
            params = message["params"]
            self.diagnostics[params["uri"]] = [one["message"] for one in params["diagnostics"]]
        elif "id" in message and "method" in message:  # it asks for its configuration: the defaults
            items = message["params"].get("items", []) if isinstance(message.get("params"), dict) else []
            self._send(id=message["id"], result=[None for _ in items])
        return message


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[LanguageServer]:
    script = Path(os.environ.get("YAML_LANGUAGE_SERVER", ""))
    if not script.is_file() or shutil.which("node") is None:
        _missing("YAML_LANGUAGE_SERVER does not name the script: npm install yaml-language-server")
    (tmp_path / "onceproof.schema.json").write_text(schema_text())
    with LanguageServer(script, tmp_path) as server:
        yield server


MODELINE = "# yaml-language-server: $schema=onceproof.schema.json\n"


@pytest.mark.timeout(120)
def test_an_editor_completes_keys_and_values_from_the_schema(editor: LanguageServer) -> None:
    uri = editor.open("keys.yaml", f"{MODELINE}cla\n")
    assert "claim" in editor.completions(uri, 1, 3)
    uri = editor.open("values.yaml", f"{MODELINE}claim:\n  delivery: \n")
    assert {"effectively-once", "at-least-once"} <= editor.completions(uri, 2, 12)
    uri = editor.open("faults.yaml", f"{MODELINE}chaos:\n  - fault: \n")
    assert {"crash", "stall"} <= editor.completions(uri, 2, 11)


@pytest.mark.timeout(120)
def test_an_editor_shows_what_is_wrong_and_nothing_else(editor: LanguageServer) -> None:
    wrong = editor.open("wrong.yaml", f"{MODELINE}claim:\n  delivery: exactly-once\nchoas: []\n")
    text = " ".join(editor.problems(wrong))
    assert "choas" in text and "effectively-once" in text
    for name in ("naive-append", "effectively-once", "hourly-delays"):
        scenario = (ROOT / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
        assert editor.problems(editor.open(f"{name}.yaml", MODELINE + scenario)) == [], name
