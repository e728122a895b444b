"""`base:`: what merges and what replaces, where errors point, and what a base may not be."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from ruamel.yaml.comments import CommentedMap
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.consumers.faults import consumer_faults
from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.oracle import oracles
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.document import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, MAX_VALUES, Document, Extent
from onceproof.scenario_files.load import MAX_BASES, load, load_to_judge, resolved
from onceproof.scenario_files.merge import merge

Write = Callable[..., Path]

#: A guard against hanging, on a busy machine too.
_PATIENCE_S = 10.0


def child(base: Path, text: str, name: str = "child") -> Path:
    """A file next to ``base`` and based on it."""
    path = base.with_name(f"{name}.yaml")
    path.write_text(f"base: ./{base.name}\n" + textwrap.dedent(text))
    return path


def refused(path: Path) -> str:
    """What `validate` prints for a refused file, without the folder's name; it must answer quickly."""
    begun = time.monotonic()
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert time.monotonic() - begun < _PATIENCE_S
    assert done.exit_code == 2, done.output
    assert len(done.stderr) < 20_000
    return done.stderr.replace(f"{path.parent}/", "")


# What merges, and what replaces


def test_mappings_merge_lists_replace_and_null_removes(write: Write) -> None:
    path = child(
        write(),
        """\
        stack: {kafka: {brokers: 1}}
        pipeline:
          command: ["{python}", "{here}/job.py", "{topic.flights}"]
          env: {MORE: x}
        outputs:
          copy: null
          rows: {identity: [id], ignore: [loaded]}
        """,
    )
    scenario = load(path)
    assert scenario.stack.kafka.brokers == 1 and scenario.stack.postgres is not None
    assert scenario.pipeline.command == ["{python}", "{here}/job.py", "{topic.flights}"]
    assert scenario.pipeline.env == {"TARGET": "{postgres}", "MORE": "x"}
    assert list(scenario.outputs) == ["rows"]
    assert (scenario.outputs["rows"].table, scenario.outputs["rows"].ignore) == ("flights_out", ["loaded"])
    assert scenario.chaos == load(path.with_name("mine.yaml")).chaos


def test_about_and_expect_are_not_inherited(write: Write) -> None:
    base = write(("expect: {verdict: held}", "expect: {verdict: violated, anomalies: [duplicate]}\nseed: 7"))
    scenario = load(child(base, "chaos: []\n"))
    assert (scenario.name, scenario.about, scenario.base) == ("child", "", "./mine.yaml")
    assert scenario.expect.verdict == "held" and scenario.expect.anomalies == [] and scenario.seed == 7


def test_an_oracle_of_another_kind_replaces_the_whole_oracle(write: Write) -> None:
    base = write(("oracle: {kind: test-nothing}", "oracle: {kind: sql, queries: {rows: SELECT 1, copy: SELECT 1}}"))
    other = "{kind: identity, topic: flights, columns: {rows: {src_partition: _partition, src_offset: _offset}}}"
    scenario = load(child(base, f"oracle: {other}\noutputs: {{copy: null}}\n"))
    assert scenario.oracle.kind == "identity" and "queries" not in scenario.oracle.model_dump()
    scenario = load(child(base, "oracle: {queries: {copy: SELECT 2}}\n"))
    assert scenario.oracle.model_dump()["queries"] == {"rows": "SELECT 1", "copy": "SELECT 2"}


def test_options_and_statements_merge_by_name(write: Write) -> None:
    base = write(
        ("  env: {TARGET", "  args: {acks: all, tables: planes, fast: true}\n  env: {TARGET"),
        ("    tables: [planes]", "    tables: [planes]\n    sql: {one: CREATE TABLE one (), two: CREATE TABLE two ()}"),
    )
    changes = (
        "pipeline: {args: {acks: 1, tables: null, more: x}, prepare: {sql: {two: 'SELECT 2', three: 'SELECT 3'}}}\n"
    )
    one, other = load(base).pipeline, load(child(base, changes)).pipeline
    assert one.command[-3:] == ["--acks=all", "--tables=planes", "--fast"]
    assert other.command[-3:] == ["--acks=1", "--fast", "--more=x"] and other.command[:-3] == one.command[:-3]
    assert one.prepare.sql == "CREATE TABLE one ()\nCREATE TABLE two ()\n"
    assert other.prepare.sql == "CREATE TABLE one ()\nSELECT 2\nSELECT 3\n"
    assert "args" not in other.model_dump(), "the stored command contains them"


_KEYS = st.sampled_from("abc")
_PLAIN = st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
_BASES = st.recursive(_PLAIN, lambda inner: st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8)
_CHILDREN = st.recursive(st.none() | _PLAIN, lambda inner: st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8)


def patched(base: Any, patch: Any) -> Any:
    """JSON Merge Patch, as RFC 7396 defines it."""
    if not isinstance(patch, dict):
        return patch
    target = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = patched(target.get(name), value)
    return target


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}


def document(name: str, data: dict[str, Any]) -> Document:
    return Document(name, CommentedMap(), data, Extent())


@given(st.lists(st.dictionaries(_KEYS, _CHILDREN, max_size=3), max_size=3), st.dictionaries(_KEYS, _BASES, max_size=3))
def test_merging_is_json_merge_patch(children: list[dict[str, Any]], base: dict[str, Any]) -> None:
    files = [*(document(str(number), data) for number, data in enumerate(children)), document("base", base)]
    expected: Any = base
    before = json.dumps([file.data for file in files])
    for data in reversed(children):
        expected = patched(expected, data)
    assert without_nulls(merge(files).data) == expected
    assert json.dumps([file.data for file in files]) == before, "merging must not change the files' own values"


@given(st.dictionaries(_KEYS, _CHILDREN, max_size=3), st.dictionaries(_KEYS, _BASES, max_size=3))
def test_each_value_is_placed_in_the_file_that_it_comes_from(own: dict[str, Any], base: dict[str, Any]) -> None:
    made = merge([document("own", own), document("base", base)])

    def check(value: Any, mine: Any, loc: tuple[str, ...]) -> None:
        if isinstance(value, dict) and (value or not loc):
            for name, inner in value.items():
                check(inner, mine[name] if isinstance(mine, dict) and name in mine else ..., (*loc, name))
        else:
            assert made.place(loc).file == ("base" if mine is ... else "own")

    check(made.data, own, ())


def models(model: Any) -> Iterator[type[BaseModel]]:
    yield from [model, *(each for below in model.__subclasses__() for each in models(below))]


def test_null_is_the_default_of_every_field_that_allows_it() -> None:
    everything = {Scenario, *(kind.Spec for registry in (faults, consumer_faults) for _, kind in registry.items())}
    everything |= {kind.Spec for _, kind in oracles.items()} | {kind.Options for _, kind in datasets.items()}
    everything |= {each for each in models(BaseModel) if each.__module__ == Scenario.__module__}
    assert len(everything) > 40
    for model in everything:
        for name, field in model.model_fields.items():
            if type(None) in getattr(field.annotation, "__args__", ()):
                assert field.default is None, f"{model.__name__}.{name}: null would not be the default"


def test_here_is_the_folder_of_the_file_that_uses_it(write: Write, tmp_path: Path) -> None:
    base = write()
    elsewhere = tmp_path / "team" / "child.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text('base: ../mine.yaml\npipeline: {env: {OWN: "{here}/x"}}\n')
    pipeline = load(elsewhere).pipeline
    assert Path(pipeline.command[1]).resolve() == (tmp_path / "job.py").resolve()
    assert pipeline.env["OWN"] == "{here}/x", "in the first file it stays a template, as without a base"
    assert load(child(base, "seed: 1\n")).pipeline.command[1] == "{here}/job.py"
    assert f'"{elsewhere.parent}/x"' in resolved(elsewhere)


def test_a_scenario_with_a_base_can_judge_an_imported_history(write: Write) -> None:
    scenario = load_to_judge(child(write(), "outputs: {copy: null}\n"))
    assert list(scenario.outputs) == ["rows"] and scenario.chaos == []


# Where errors point


def test_a_mistake_in_the_base_is_reported_in_the_base(write: Write) -> None:
    base = write(("brokers: 3", "borkers: 3"), ("point: after-sink-commit", "point: after-sink"))
    message = refused(child(base, "\nseed: 1\n"))
    assert "mine.yaml:3:11: unknown key 'borkers'\n    did you mean 'brokers'?\n    " in message
    assert "mine.yaml:20:27: unknown point 'after-sink'" in message
    assert message.count("child.yaml:1:7 is based on it") == 2


def test_a_mistake_in_the_child_is_reported_in_the_child(write: Write) -> None:
    message = refused(child(write(), "outputs:\n  rows: {identiy: [id]}\nclaim: {order: per-kye}\n"))
    assert "child.yaml:3:10: unknown key 'identiy'" in message and "child.yaml:4:16: unknown order 'per-kye'" in message
    assert "mine.yaml" not in message


def test_a_problem_names_the_change_that_makes_a_value_of_the_base_wrong(write: Write) -> None:
    message = refused(child(write(), "seed: 1\nstack: {postgres: null}\n"))
    assert "mine.yaml:22:17: output table 'flights_out' needs" in message
    assert "files based on it change: seed (child.yaml:2:7), stack.postgres (child.yaml:3:19)" in message
    assert ":1:7 is based on it" not in message


def test_the_first_of_many_changes_are_named(write: Write) -> None:
    env = ", ".join(f"V{number}: x" for number in range(20))
    message = refused(child(write(), f"pipeline: {{env: {{{env}}}}}\nstack: {{postgres: null}}\n"))
    assert "pipeline.env.V3 (child.yaml:2:" in message and "17 more" in message and "V4" not in message


def test_a_problem_of_an_option_is_reported_where_the_option_is_written(write: Write) -> None:
    base = write(("  env: {TARGET", '  args: {a: x, b: "{kafkaa}"}\n  env: {TARGET'))
    assert "mine.yaml:12:19: unknown template {kafkaa}" in refused(base)
    assert "mine.yaml:12:19: unknown template {kafkaa}" in refused(child(base, "pipeline: {args: {a: y}}\n"))
    message = refused(child(base, 'pipeline:\n  args:\n    b: 1\n    c: "{kafkab}"\n'))
    assert "child.yaml:5:8: unknown template {kafkab}" in message and "mine.yaml" not in message
    for value in ("1.5", "false", "[x]", "{x: y}"):
        assert "the value of an option is text or a whole number" in refused(
            child(base, f"pipeline: {{args: {{b: {value}}}}}\n")
        )


def test_null_for_an_unknown_key_is_checked_like_any_value(write: Write) -> None:
    message = refused(child(write(), "outputs: {roows: null}\n"))
    assert "child.yaml:2:18: roows: null is not a mapping" in message


def test_invalid_yaml_in_the_base_is_reported_in_the_base(write: Write) -> None:
    message = refused(child(write(("brokers: 3}", "brokers: 3")), "seed: 1\n"))
    assert "mine.yaml:4:11: not YAML" in message and "child.yaml:1:7 is based on it" in message


def test_a_warning_names_the_file_that_its_value_comes_from(write: Write) -> None:
    done = CliRunner().invoke(app, ["validate", str(child(write(), "seed: 1\n"))])
    assert done.exit_code == 0 and "child.yaml: valid, with " in done.output
    assert "mine.yaml:11:3: warning: the job does not use {checkpoint}" in done.output
    assert "child.yaml:1:7 is based on it" in done.output and "change: seed" not in done.output


# What a base may not be


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (
            "driver-crash-postgre",
            "child.yaml:1:7: unknown base 'driver-crash-postgre'\n    did you mean 'driver-crash-postgres'",
        ),
        ("mine", "unknown base 'mine'\n    did you mean './mine.yaml'"),
        ("zzz", "unknown base 'zzz'\n    nearest: "),
        ("./mien.yaml", "mien.yaml' does not exist\n    did you mean 'mine.yaml'"),
        ("mien.yml", "mien.yml' does not exist\n    did you mean 'mine.yaml'"),
        ("./gone/mine.yaml", "does not exist\n    there is no YAML file in "),
        (
            "base/flights.yaml",
            "base 'base/flights.yaml' does not exist next to this file\n    to copy a shipped scenario",
        ),
        ("./team/", "does not exist"),
        ("./pipe.yaml", "does not exist"),
        ("./binary.yaml", "child.yaml:1:7: binary.yaml is not UTF-8 text (byte 0)\n    save it as UTF-8"),
        ("/dev/zero", "does not exist"),
        ("[./mine.yaml]", 'base: ["./mine.yaml"] is not text'),
        ("7", "base: 7 is not text"),
        ('""', "unknown base ''"),
        ("x" * 5000, "unknown base 'xxx"),
        ("~nosuchuser/x.yaml", "does not exist"),
        ('"a\\u0007.yaml"', "does not exist"),
    ],
    ids=lambda value: value[:20],
)
def test_a_base_that_cannot_be_read_is_refused(write: Write, tmp_path: Path, base: str, expected: str) -> None:
    write()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "team").mkdir()
    path = tmp_path / "child.yaml"
    path.write_text(f"base: {base}\n")
    assert expected in refused(path)


def test_a_cycle_of_bases_is_reported(tmp_path: Path) -> None:
    for name, base in {"a": "b", "b": "c", "c": "a"}.items():
        (tmp_path / f"{name}.yaml").write_text(f"# {name}\nbase: ./{base}.yaml\n")
    assert "c.yaml:2:7: base: './a.yaml' is based on itself: a.yaml -> b.yaml -> c.yaml -> a.yaml" in refused(
        tmp_path / "a.yaml"
    )
    (tmp_path / "self.yaml").write_text("base: ./self.yaml\n")
    assert "self.yaml -> self.yaml" in refused(tmp_path / "self.yaml")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "linked.yaml")
    (tmp_path / "linked.yaml").write_text("base: ./link.yaml\n")
    assert "linked.yaml -> link.yaml" in refused(tmp_path / "linked.yaml")


def test_a_chain_of_too_many_bases_is_refused(write: Write) -> None:
    path = write()
    for number in range(MAX_BASES):
        path = child(path, f"seed: {number}\n", f"level{number}")
    assert load(path).seed == MAX_BASES - 1
    message = refused(child(path, "seed: 9\n", "last"))
    assert (
        f"more than {MAX_BASES} bases: last.yaml -> level4.yaml -> " in message
        and "level0.yaml -> mine.yaml" in message
    )


LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LAUGHS, f"written out the file and those based on it have more than {MAX_VALUES:,} values"),
        ("a: &a x\nb: [" + "*a, " * (MAX_ALIASES + 1) + "]\n", f"more than {MAX_ALIASES} aliases"),
        ("y: &y {<<: *y}\n", "base.yaml:1:12: *y is inside &y"),
        ("x: " + "[" * 300 + "]" * 300, f"nested more than {MAX_DEPTH} levels deep"),
        ("".join(f"key{n}: 1\n" for n in range(4_500)), f"have more than {MAX_VALUES:,} values"),
        (
            "# a comment\n" * 4_000_000,
            "the file has 48,000,000 bytes, the files based on it 18; a scenario may have",
        ),
        ("a: !!python/object:os.system x\n", "has no meaning in a scenario"),
        ("- a\n", "a scenario is a mapping of keys to values; found a list"),
        ("", "the file is empty"),
        ("\0", "not YAML"),
    ],
    ids=lambda value: value[:20],
)
def test_a_hostile_base_is_refused_quickly(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "base.yaml").write_text(text)
    (tmp_path / "child.yaml").write_text("base: ./base.yaml\n")
    message = refused(tmp_path / "child.yaml")
    assert expected in message and "base.yaml:" in message and "child.yaml:1:7 is based on it" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("".join(f"f{{}}k{n}: 1\n" for n in range(800)), f"have more than {MAX_VALUES:,} values"),
        ("a{}: &a x\nb{}: [" + "*a, " * (MAX_ALIASES // 3) + "]\n", f"more than {MAX_ALIASES} aliases"),
        ("#" * (MAX_BYTES // 3) + "\n", f"a scenario may have {MAX_BYTES:,}"),
    ],
    ids=["values", "aliases", "bytes"],
)
def test_a_file_with_its_bases_has_the_limits_of_one_file(tmp_path: Path, text: str, expected: str) -> None:
    for number in range(5):
        (tmp_path / f"l{number}.yaml").write_text(text.replace("{}", str(number)) + f"base: ./l{number + 1}.yaml\n")
    assert expected in refused(tmp_path / "l0.yaml")


def test_many_mistakes_in_a_base_are_reported_quickly(write: Write) -> None:
    env = ", ".join(f'V{number}: "{{kafkaa}}"' for number in range(900))
    base = write(('env: {TARGET: "{postgres}"}', f"env: {{{env}}}"))
    message = refused(child(base, f"pipeline: {{env: {{{env.replace('V', 'W')}}}}}\n"))
    assert "more problems" in message
