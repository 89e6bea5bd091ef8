"""How many modules one has to open to follow a click log to weights, and a request to its logged row."""

from collections.abc import Mapping

import pytest

from benchmarks.checkouts import ROOT
from benchmarks.walk import TITLES, Walk, walks

MOST_MODULES = {"training": 32, "request": 13}
MOST_FILE_CHANGES_OF_A_REQUEST = 40
"""The walks may only get shorter: lower these when they do, and raise them only for a new stage of the flow.

Training: the roles of columns (roles, plan, assembly, inputs), the search for leaks (checks), the base order beside the
model (ranker) and pairs of items (pairs) came after the first 25. A request: admission came after the first 12.
"""


@pytest.fixture(scope="module")
def traced() -> Mapping[str, Walk]:
    return walks(ROOT)


def test_modules_and_changes_of_file_are_counted() -> None:
    walk = Walk([("a", "f"), ("a", "g"), ("b", "h"), ("a", "g"), ("c", "i")])
    assert walk.first_calls == {"a": "f", "b": "h", "c": "i"}
    assert str(walk) == "3 modules, 4 changes of file"


def test_training_goes_from_the_reader_to_the_saved_model(traced: Mapping[str, Walk]) -> None:
    modules = list(traced["training"].first_calls)
    expected = ["data.parquet", "data.lists", "training.fit", "atomic"]
    assert [module for module in modules if module in expected] == expected


def test_a_request_goes_through_the_writer_thread_before_it_is_answered(traced: Mapping[str, Walk]) -> None:
    visited = [module for module, _ in traced["request"].calls]
    assert "log.sqlite" in visited
    assert visited[0].startswith("serving.")
    assert visited[-1].startswith("serving.")


@pytest.mark.parametrize("name", TITLES)
def test_no_walk_gets_longer(traced: Mapping[str, Walk], name: str) -> None:
    assert len(traced[name].first_calls) <= MOST_MODULES[name], str(traced[name])
    if name == "request":
        assert traced[name].file_changes <= MOST_FILE_CHANGES_OF_A_REQUEST, str(traced[name])


def test_the_command_line_imports_and_resumed_coroutines_are_no_part_of_a_walk(traced: Mapping[str, Walk]) -> None:
    calls = [*traced["training"].calls, *traced["request"].calls]
    assert not [call for call in calls if call[0].startswith("cli") or call[1] == "<module>"]
    asked = [call for call in traced["request"].calls if call == traced["request"].calls[0]]
    assert len(asked) == 1, "the application is called once, and resumed when the row is committed"
