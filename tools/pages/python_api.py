"""`docs/python-api.md` from the signatures and docstrings of the Python API, and from the models of the faults.

Also the imports in ``onceproof/__init__.py`` from which a type checker knows each public name.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import onceproof
from onceproof.api.faults import class_names, kind_named
from onceproof.scenario_files.schema import fields
from pages.page import DOCS, ROOT

PACKAGE = ROOT / "src" / "onceproof" / "__init__.py"

HEAD = """# The Python API

Written by `python tools/generate.py` from the code; a test checks that it is up to date.

```python
import onceproof

run = onceproof.run("orders.yaml", chaos=[onceproof.Crash("driver", batch=2, point="after-sink-commit")])
run.assert_held()
```

`import onceproof` imports nothing else: each name is loaded when it is first used. The command line and the
[pytest plugin](pytest.md) call the same functions, so a verdict is the same however a scenario is run. A type checker knows all
names below; a kind of fault of another package is made with `onceproof.fault("its-name", ...)`.
"""

FUNCTIONS = ("load", "run", "check", "qualify", "import_history", "schedules", "fault")
CLASSES = (
    *("Run", "LoadedScenario", "Verdict", "Finding", "Witness", "FaultReport", "BatchReport"),
    *("Qualification", "Cell", "SharedStack"),
)
ERRORS = ("OnceproofError", "UsageError", "ScenarioError", "EnvironmentProblem", "HistoryError", "Interrupted")


def files() -> dict[Path, str]:
    return {DOCS / "python-api.md": render(), PACKAGE: with_imports(PACKAGE.read_text(encoding="utf-8"))}


def with_imports(source: str) -> str:
    """Return the source of the package with an import of each public name, in the order that the linter wants."""
    names = [(module, name) for name, module in onceproof._DEFINED_IN.items()]
    names += [("api.faults", name) for name in class_names()]
    names.sort(key=lambda one: (one[0], not one[1][0].isupper(), one[1].lower()))
    block = "".join(f"    from onceproof.{module} import {name} as {name}\n" for module, name in names)
    made, places = re.subn(r"(    from onceproof\.\S+ import \w+ as \w+\n)+", block, source)
    if places != 1:
        raise SystemExit(f"{PACKAGE.name} has {places} places for the imports, not one")
    return made


def render() -> str:
    lines = [HEAD, "## Functions", ""]
    for name in FUNCTIONS:
        lines += [*_function(name, named(name)), ""]
    lines += ["## Values", ""]
    for name in CLASSES:
        lines += [*_class(name, named(name)), ""]
    lines += ["`Scenario` has the fields of a [scenario file](scenario-files.md). `Outcome` is one of"]
    lines += [f"{', '.join(f'`{outcome}`' for outcome in onceproof.Outcome)} ([verdicts](verdicts.md)).", ""]
    lines += [
        "## Errors",
        "",
        "Each has `message`, `hint` and the `exit_code` of the command line. All but `Interrupted` are kinds of",
    ]
    lines += [
        "`OnceproofError`; `Interrupted` is not an `Exception`, so that `except Exception` does not take it for a failure.",
        "",
    ]
    lines += ["| error | exit code | when |", "| --- | --- | --- |"]
    for name in ERRORS:
        error = named(name)
        lines.append(f"| `{name}` | {error.exit_code} | {_first(error)} |")
    lines += ["", "## Faults", "", *_faults()]
    return "\n".join(lines).rstrip() + "\n"


def named(name: str) -> Any:
    """Return the public object of that name, as a user gets it."""
    return attrgetter(name)(onceproof)


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    yield from _signature(name, function)
    yield _paragraphs(function)


def _signature(name: str, function: Any) -> Iterator[str]:
    """Yield the signature as a block of code, without the modules of its types."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    lines: list[str] = []
    keyword_only = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("*")
        lines.append(re.sub(r": '([^']*)'", r": \1", str(parameter)).replace("PosixPath", "Path"))
    result = signature.return_annotation
    yield "```python"
    yield from (
        [f"{name}(", *(f"    {line}," for line in lines), f") -> {result}"] if lines else [f"{name}() -> {result}"]
    )
    yield "```"
    yield ""


def _class(name: str, kind: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    yield _paragraphs(kind)
    yield ""
    yield "| field | type | meaning |"
    yield "| --- | --- | --- |"
    meanings = _meanings(kind)
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.repr or field.name == "source":
            yield f"| `{field.name}` | `{_cell(str(field.type))}` | {_cell(meanings.get(field.name, ''))} |"
    for attribute, value in vars(kind).items():
        if isinstance(value, property) and not attribute.startswith("_"):
            yield f"| `{attribute}` | `{value.fget.__annotations__['return']}` | {_cell(_first(value))} |"
        elif inspect.isfunction(value) and not attribute.startswith("_") and value.__doc__:
            arguments = ", ".join(str(p) for p in inspect.signature(value).parameters.values() if p.name != "self")
            yield f"| `{attribute}({_cell(arguments)})` | `{value.__annotations__['return']}` | {_cell(_first(value))} |"


def _meanings(kind: Any) -> dict[str, str]:
    """Return the text below each field, as in the source: field -> first sentence."""
    source = inspect.getsource(kind)
    found = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _faults() -> Iterator[str]:
    yield "Each kind is called with its target, its position (`batch` and `point`, or `message` and `after`) and its settings:"
    yield '`onceproof.LostAck("postgres", batch=2, point="before-sink-commit")`. [Points and faults](faults.md) explains them.'
    yield "The result is an `AnyFaultSpec`, whichever kind it is."
    yield ""
    for name in class_names():
        kind = kind_named(name)
        assert kind is not None
        yield f"### `{name}`"
        yield ""
        for pipeline, implementations in kind.implementations.items():
            for fault in implementations:
                rows = [(field, about) for field, about in fields(fault.Spec) if field != "fault"]
                what = f", {fault.about}" if len(implementations) > 1 else ""
                yield f"For {'a Spark job' if pipeline == 'command' else pipeline}{what}:"
                yield ""
                yield "| setting | meaning |"
                yield "| --- | --- |"
                yield from (f"| `{field}` | {_cell(about)} |" for field, about in rows)
                yield ""


def _paragraphs(thing: Any) -> str:
    """Return the docstring as Markdown."""
    text = inspect.getdoc(thing) or ""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _first(thing: Any) -> str:
    return " ".join(_paragraphs(thing).split("\n\n")[0].split())


def _cell(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text).replace("|", "\\|")
