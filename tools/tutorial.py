"""Draw the pictures of the tutorial again, by running its code: `python -m tools.tutorial`."""

import os
import shutil
import tempfile
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, testfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    """Run the page in a folder of its own, and keep its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        page = str(DOCS / "tutorial.md")
        testfile(page, module_relative=False, optionflags=ELLIPSIS | NORMALIZE_WHITESPACE, encoding="utf-8")
        for picture in Path(folder).glob("tutorial-*.svg"):
            shutil.copy(picture, DOCS / "pictures")


if __name__ == "__main__":
    main()
