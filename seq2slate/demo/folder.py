"""The folder of a demo, which the next demo may empty and fill again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from seq2slate.errors import UsageError

_MARK = ".seq2slate-demo"


class DemoFolder:
    """The paths of what a demo writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        """What is being served: first the base order alone, then two arms."""
        self.log = path / "log.db"
        """The impressions and clicks."""
        self.shown = path / "shown.parquet"
        """The log, exported as training lists."""
        self.model = path / "model"
        """The model that was trained on them."""
        self.new_lists = path / "new-lists.parquet"
        """The lists of the experiment, in base order and with grades, for more traffic."""
        self.visitors = path / "visitors.json"
        """The slates and clicks that the visitors counted themselves."""
        self.errors = path / "service.txt"
        """What the service wrote to standard error."""
        self.report = path / "report.html"


def fresh_folder(path: str | os.PathLike[str]) -> DemoFolder:
    """Make a folder, or empty the one of an earlier demo; any other folder that holds files is a UsageError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = fresh_folder(Path(place, "demo")).log.write_text("old")
    ...     fresh_folder(Path(place, "demo")).log.exists()
    False
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _MARK
    entries = list(folder.iterdir())
    if entries and mark not in entries:
        raise UsageError(f"{folder} is not the folder of an earlier demo: name another one with --out")
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry != mark:
            entry.unlink()
    mark.write_text("seq2slate demo writes this folder anew each time\n", encoding="utf-8")
    return DemoFolder(folder)
