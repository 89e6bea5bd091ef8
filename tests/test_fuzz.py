"""Coverage-guided fuzzing of decoders: only errors that their senders are shown escape."""

import pytest

from benchmarks import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_fuzzing_finds_nothing(target: str) -> None:
    pytest.importorskip("atheris", reason="no Atheris for this Python")
    found = fuzz.fuzz(target, seconds=15)
    assert not found.failure, found.failure
    assert found.inputs > 200
