"""Settings of the examples in README: they may write files."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.suffix == ".md":
        monkeypatch.chdir(tmp_path)
