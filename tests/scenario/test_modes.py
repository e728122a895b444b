"""The modes in which Spark does not log each batch."""

from __future__ import annotations

from onceproof.scenario.modes import without_batches


def test_a_query_that_starts_meanwhile_does_not_disturb() -> None:
    modes: dict[str, str] = {}

    class Mode(str):
        """Another thread reports a further query while it is looked up."""

        __slots__ = ()

        def __hash__(self) -> int:
            modes["late"] = "continuous"
            return hash(str(self))

    modes |= {"first": "continuous", "second": Mode("continuous"), "third": "async"}
    assert without_batches(modes) == ["first", "second"]
    assert without_batches(modes) == ["first", "late", "second"]
