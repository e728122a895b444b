"""`validate` checks that the code files of oracles and decoders exist, and reports their place in the scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.scenario_files.load import load

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TEXT = (SCENARIOS / "held-against-a-batch.yaml").read_text().replace("{here}", str(SCENARIOS))
BEFORE, _, ORACLE = TEXT.partition("oracle:\n")
CLAIM = "\nclaim: {delivery: effectively-once}\n"


@pytest.mark.parametrize(
    ("text", "wrong", "named"),
    [
        (
            BEFORE + 'oracle:\n  kind: python\n  function: "{here}/nowhere.py:rows"\n' + CLAIM,
            "does not exist",
            "nowhere.py",
        ),
        (BEFORE + "oracle:\n" + ORACLE.replace("either_way.py", "either_wy.py"), "does not exist", "either_wy.py"),
        (
            TEXT.replace("dataset: flights\n", 'dataset: flights\n    decode: "{here}/wire.py:decode"\n'),
            "does not exist",
            "wire.py",
        ),
        (TEXT.replace("dataset: flights\n", "dataset: flights\n    decode: jsn\n"), "there is no decoder 'jsn'", "jsn"),
        (
            TEXT.replace("--checkpoint=", "--in={input.flights}\n    - --checkpoint="),
            "only in the command of oracle batch",
            "{input.flights}",
        ),
    ],
)
def test_a_missing_file_is_reported_with_its_place(tmp_path: Path, text: str, wrong: str, named: str) -> None:
    path = tmp_path / "held-against-a-batch.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as refused:
        load(path)
    (problem,) = refused.value.problems
    assert wrong in problem.message
    assert named in text.splitlines()[problem.place.line - 1]
