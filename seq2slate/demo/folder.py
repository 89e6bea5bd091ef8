"""What the demo leaves behind: one folder, which the next demo may write anew."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from seq2slate.errors import UsageError

_MARK = ".seq2slate-demo"


@dataclass(frozen=True)
class Folder:
    """Where everything is."""

    path: Path

    @property
    def experiment(self) -> Path:
        """What is being served: first the base order alone, then two arms."""
        return self.path / "experiment.toml"

    @property
    def log(self) -> Path:
        """All that was shown and clicked."""
        return self.path / "log.db"

    @property
    def shown(self) -> Path:
        """What the log has to learn from."""
        return self.path / "shown.parquet"

    @property
    def model(self) -> Path:
        """What was learned from it."""
        return self.path / "model"

    @property
    def new_lists(self) -> Path:
        """The lists of the experiment, in base order and with grades, to send more visitors with."""
        return self.path / "new-lists.parquet"

    @property
    def visitors(self) -> Path:
        """What the visitors counted themselves."""
        return self.path / "visitors.json"

    @property
    def errors(self) -> Path:
        """What the service had to say."""
        return self.path / "service.txt"

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report.html"


def fresh_folder(path: str | os.PathLike[str]) -> Folder:
    """Make a folder, or empty the one of an earlier demo; anything else that holds files is refused.

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
    return Folder(folder)
