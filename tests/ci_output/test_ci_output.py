"""What CI servers show: GitHub's summary and annotations, GitLab's code quality report, and the files for them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from onceproof.api import runs
from onceproof.api.runs import Run
from onceproof.ci_output import github, gitlab
from onceproof.ci_output.result import CiResult
from onceproof.ci_output.server import publish
from onceproof.cli.app import app
from onceproof.judge.findings import Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.scenario_files.lines import line_of_verdict
from onceproof.scenario_files.load import LoadedScenario

BAD = "base: ack-lost-transactional\nabout: x\nclaim: {order: per-key}\nexpect: {verdict: held}\n"


def result(path: Path | None = None, **more: Any) -> CiResult:
    values = {"scenario": "orders", "passed": False, "status": "violated", "why": "duplicate 2", "detail": "two\nlines"}
    return CiResult(path=path, **{**values, **more})


@pytest.mark.parametrize(
    ("text", "line"),
    [(BAD, 3), ("about: x\nchaos:\n  - claim: no\n", 2), ("about: x\nexpect: {}\nchaos: []\n", 2), ("about: x\n", 1)],
)
def test_the_line_is_that_of_the_claim_or_the_next_best(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert line_of_verdict(tmp_path / "a.yaml") == line
    assert line_of_verdict(tmp_path / "none.yaml") == 1


def test_an_annotation_is_at_the_line_of_the_scenario_and_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a,b:c%.yaml"
    path.write_text(BAD)
    failed = result(path, scenario="a,b:c%", detail="50 %\r\n::error::no\x1b[0m")
    (line,) = github.annotation_lines([failed, result(passed=True)], tmp_path)
    assert line == (
        "::error file=a%2Cb%3Ac%25.yaml,line=3,title=onceproof%3A a%2Cb%3Ac%25 violated"
        r"::50 %25\x0d%0A::error::no\x1b[0m"
    )
    (elsewhere,) = github.annotation_lines([failed], tmp_path / "checkout")
    assert elsewhere.startswith("::error title=")


def test_a_long_annotation_keeps_its_findings_and_its_commands(tmp_path: Path) -> None:
    commands = ["report: /r/report.html", "judge it again: onceproof check /r", "run it again: onceproof run o.yaml"]
    (line,) = github.annotation_lines([result(detail="\n".join(["first", *["x" * 99] * 40, *commands]))], tmp_path)
    message = line.partition("::error title=")[2].partition("::")[2].replace("%0A", "\n")
    assert message.startswith("first\nxxx") and message.endswith("\n".join(commands)) and len(message) <= 2000
    assert re.search(r"\u2026 \(2,\d{3} more characters\)\n", message)
    (line,) = github.annotation_lines([result(detail="y" * 9999)], tmp_path)
    assert len(line) < 2100 and "more characters" in line


def test_the_summary_is_markdown_that_values_cannot_break(tmp_path: Path) -> None:
    text = github.summary([result(why="a|b <script>\n*c*", detail="```\nnot the end"), result(passed=True, detail="")])
    assert text.startswith("### onceproof: 1 of 2 passed\n")
    assert r"| orders | **violated** | a\|b &lt;script&gt; \*c\* |" in text and "| orders | violated |" in text
    assert "````\n```\nnot the end\n````\n" in text


def test_the_summary_is_at_most_as_long_as_github_allows() -> None:
    many = [result(scenario=f"one-{number}", detail="ä" * 5000) for number in range(300)]
    text = github.summary(many)
    assert 1_000_000 < len(text.encode()) <= 1024 * 1024
    assert text.endswith("The log has all of it.\n") and text.count("```\n") % 2 == 0
    assert github.summary(many, 10) == ""


def test_github_gets_annotations_and_the_summary_after_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BAD)
    said: list[str] = []
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path), "GITHUB_STEP_SUMMARY": str(file)}
    publish([result(tmp_path / "a.yaml")], env, said.append)
    assert [line.partition("::two")[0] for line in said] == [
        "::error file=a.yaml,line=3,title=onceproof%3A orders violated"
    ]
    assert file.read_text().startswith("before\n### onceproof: 0 of 1 passed")


def test_gitlab_gets_a_code_quality_report(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.yaml").write_text(BAD)
    env = {"GITLAB_CI": "true", "CI_PROJECT_DIR": str(tmp_path)}
    failed, doubtful = result(tmp_path / "sub/a.yaml"), result(status="not run", why="1 s left")
    publish([failed, doubtful, result(passed=True)], env, pytest.fail, here=tmp_path)
    first, second = json.loads((tmp_path / gitlab.FILE).read_text())
    assert first["location"] == {"path": "sub/a.yaml", "lines": {"begin": 3}}
    assert first["check_name"] == "onceproof-violated" and first["severity"] == "blocker"
    assert first["description"] == "orders: violated, duplicate 2"
    assert second["severity"] == "major" and second["location"]["path"] == "orders"
    assert first["fingerprint"] != second["fingerprint"] and len(first["fingerprint"]) == 64
    publish([result(passed=True)], env, pytest.fail, here=tmp_path)
    publish([failed], env, pytest.fail, here=tmp_path)
    assert json.loads((tmp_path / gitlab.FILE).read_text()) == [first, second], (
        "another command of the job takes nothing back"
    )
    (tmp_path / gitlab.FILE).write_text("half a report: [{")
    publish([doubtful], env, pytest.fail, here=tmp_path)
    assert json.loads((tmp_path / gitlab.FILE).read_text()) == [second]


def test_another_server_gets_nothing(tmp_path: Path) -> None:
    publish([result()], {"CI": "true"}, pytest.fail, here=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["run", "a.yaml"], ["gate", "--update"]])
def test_the_option_reports_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    (tmp_path / "a.yaml").write_text(BAD)
    (tmp_path / "onceproof.toml").write_text('[gate]\nscenarios = [{path = "a.yaml"}]\n')
    duplicate = Finding("duplicate", "table", 2, "2 extra rows", (Witness({}, "but 2 rows"),))

    def run(
        loaded: LoadedScenario,
        *,
        runs_dir: Path,
        listeners: object,
        shared: object,
        seed: int | None = None,
        tier: str = "real",
    ) -> Run:
        found = Verdict(loaded.scenario.name, Outcome.VIOLATED, StatedClaim(), ("duplicate in table",), (duplicate,))
        return Run(loaded.scenario, found, runs_dir / "one")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr("onceproof.cli.run._picture", lambda scenario, run: "")
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, [*command, "--ci", "--runs", str(tmp_path / "runs")])
    assert done.exit_code == 1, done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("::")]
    assert line.startswith("::error file=a.yaml,line=3,title=onceproof%3A a ")
    assert "%0A  duplicate in table: 2 extra rows%0A    but 2 rows%0A" in line
    assert "**" in (tmp_path / "summary.md").read_text()

    # The files come first: whatever the server's cannot hold, the result is stored.
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary.md"))
    done = CliRunner().invoke(app, [*command, "--ci", "--junit", "out.xml", "--runs", str(tmp_path / "runs")])
    assert done.exit_code == 4 and "cannot write GITHUB_STEP_SUMMARY" in done.output
    assert "2 extra rows" in (tmp_path / "out.xml").read_text()


def test_the_cache_key_is_stable_and_starts_nothing() -> None:
    first, second = (CliRunner().invoke(app, ["doctor", "--cache-key"]).stdout for _ in range(2))
    assert first == second and re.fullmatch(r"onceproof-\w+-[0-9a-f]{16}\n", first)


ROOT = Path(__file__).parents[2]


def yaml_blocks(page: str, having: str = "") -> list[Any]:
    """The YAML blocks of a page in which the pattern ``having`` occurs."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```ya?ml\n(.*?)```", text, re.DOTALL)
    return [YAML(typ="safe").load(block) for block in blocks if re.search(having, block, re.MULTILINE)]


@pytest.mark.sources
def test_the_action_is_valid_and_no_input_reaches_the_shell_as_code() -> None:
    action = YAML(typ="safe").load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    used = re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8"))
    assert set(used) == set(action["inputs"])
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an expression in a script is code: pass it in env"
        assert ("shell" in step) == ("run" in step)


def workflows() -> list[tuple[str, Any]]:
    """Each YAML block in README and docs that has jobs, as GitHub's workflows do."""
    pages = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    return [(page, block) for page in pages for block in yaml_blocks(page, r"^jobs:")]


@pytest.mark.sources
def test_every_documented_workflow_is_complete() -> None:
    found = workflows()
    assert [page for page, _ in found] == ["docs/ci.md", "docs/your-job.md"]
    for page, workflow in found:
        assert {"on", "jobs"} <= workflow.keys() <= {"name", "on", "jobs", "env", "permissions"}, page
        assert workflow["on"].keys() == {"push", "pull_request"}, page
        for name, job in workflow["jobs"].items():
            assert job["runs-on"] and job["steps"], f"{page}: {name}"
            for step in job["steps"]:
                assert ("uses" in step) != ("run" in step), f"{page}: {name}: {step}"
                assert step.keys() <= {"name", "id", "if", "uses", "with", "run", "env", "shell"}, f"{page}: {name}"
                assert "run" not in step or "with" not in step, f"{page}: {name}: {step}"


@pytest.mark.sources
def test_every_documented_pipeline_keeps_junit_xml_where_its_server_looks() -> None:
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    _, gitlab_job, _ = yaml_blocks("docs/ci.md")
    written = re.findall(r"onceproof gate .*--junit (\S+?)'?(?: |$)", text, re.MULTILINE)
    assert written == ["onceproof-junit.xml"] * 2, "GitLab and Jenkins"
    assert gitlab_job["exactly-once"]["artifacts"]["reports"]["junit"] == written[0]
    assert f"junit '{written[1]}'" in text
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    commands = re.findall(r"onceproof (?:run|gate) .*", action)
    assert len(commands) == 2 and all("--junit onceproof-junit.xml" in command for command in commands)


@pytest.mark.sources
def test_the_documented_pipelines_are_yaml_and_name_existing_commands() -> None:
    github_job, gitlab_job, hooks = yaml_blocks("docs/ci.md")
    assert github_job["jobs"]["exactly-once"]["steps"] and gitlab_job["exactly-once"]["artifacts"]["reports"]
    assert hooks["repos"][0]["hooks"] == [{"id": "onceproof-validate"}]
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    # Only in code: elsewhere the word may just be the product's name.
    code = re.findall(r"^```.*?^```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE)
    commands = set(re.findall(r"\bonceproof ([a-z]+) ", "\n".join(code)))
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {c.callback.__name__ for g in app.registered_groups for c in g.typer_instance.registered_commands}
    assert {"run", "gate"} <= commands <= known


@pytest.mark.sources
def test_the_pre_commit_hook_validates_scenarios() -> None:
    (hook,) = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["id"] == "onceproof-validate" and hook["entry"] == "onceproof validate"
    assert re.search(hook["files"], "jobs/orders.onceproof.yaml") and not re.search(hook["files"], "values.yaml")
