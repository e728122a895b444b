"""The contract of a checker: it describes its anomaly completely, finds each planted one, and nothing in a correct history."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from onceproof.judge.checker import Checker, Explanation, checkers
from onceproof.judge.findings import Finding
from onceproof.judge.open import open_case
from onceproof.scenario.outputs import Claim

from .properties.world import DAMAGES, Drawn, fit_for, histories, store


@pytest.mark.parametrize("name", checkers.names())
def test_a_checker_describes_its_anomaly_completely_in_its_own_file(name: str) -> None:
    checker = checkers.get(name)
    assert issubclass(checker, Checker)
    assert checker.__module__ == f"onceproof.checkers.{name.replace('-', '_')}", "one file per anomaly, named after it"
    assert vars(checker).keys() >= {"meaning", "explanation", "rule", "comes_with", "damages", "check"}
    assert checker.__doc__ and checker.damages
    for field in fields(Explanation):
        if field.name == "after":  # advice that only some faults need
            continue
        assert getattr(checker.explanation, field.name), f"{name} has no {field.name}"
    assert checker.comes_with.keys() <= {*checkers.names()} - {name} and all(checker.comes_with.values())


@pytest.mark.parametrize("name", checkers.names())
def test_a_checker_s_rule_names_existing_claims(name: str) -> None:
    for allowed in checkers.get(name).rule.allows:
        assert allowed.fits(Claim.model_validate(dict(allowed.claim)))
        assert allowed.what and allowed.why.format(source="source", transient="")
        if allowed.when is None:  # then the claim can be held without evaluating this anomaly
            assert list(allowed.claim.values()) == ["none"]


@pytest.mark.parametrize("name", DAMAGES)
@histories(1)
@given(data=st.data())
def test_a_checker_finds_planted_damages_and_nothing_else(
    make_run: Callable[[Path], Any], name: str, data: st.DataObject
) -> None:
    anomaly, damage = DAMAGES[name]
    broken = data.draw(fit_for(damage))
    clean = deepcopy(broken)
    named = damage.apply(broken, Drawn(data))
    note(f"{damage.about}: {named}")
    planted = {output: sum(who.values()) for (of, output), who in named.items() if of == anomaly}
    assert planted, "the damage plants no anomaly of this checker"
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for kind, world in (("clean", clean), ("broken", broken)):
            run = make_run(Path(folder) / kind)
            store(world, run)
            with open_case(run.save()) as case:
                found[kind] = list(checkers.get(anomaly)().check(case))
    assert found["clean"] == [], "neither a finding nor a gap"
    totals: Counter[str] = Counter()
    for result in found["broken"]:
        assert isinstance(result, Finding) and result.anomaly == anomaly, result
        totals[result.output] += result.total
    assert totals == planted


def test_names_of_damages_are_unique() -> None:
    names = [damage.name for _, damage in DAMAGES.values()]
    assert len(names) == len(set(names)) == sum(len(checker.damages) for _, checker in checkers.items())


def test_a_checker_of_another_package_inherits_the_defaults() -> None:
    class Theirs:
        meaning = "what only they look for"

    theirs: Any = Theirs
    with pytest.raises(TypeError, match=r"checker 'theirs' must inherit from onceproof\.judge\.checker\.Checker"):
        checkers.register("theirs")(theirs)
    assert "theirs" not in checkers.names()


def test_no_checker_imports_the_library_of_the_property_tests() -> None:
    script = """
import sys
from onceproof.judge.checker import checkers
checkers.names()
print("hypothesis" in sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert loaded.stdout == "False\n"
