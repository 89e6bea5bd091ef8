"""The documents say what is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def tree_of_the_readme() -> set[str]:
    """The files that the README's map names."""
    block = re.search(r"```\n(seq2slate/\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    folders: list[str] = []
    files = set()
    for line in block.group(1).splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders = [*folders[:depth], name]
        if not name.endswith("/"):
            files.add("".join(folders))
    return files


def test_the_map_of_the_readme_is_true() -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("*.py", "*.c", "*.h")
        for path in (ROOT / "seq2slate").rglob(suffix)
        if path.name != "__init__.py" or path.parent.name == "seq2slate"
    }
    assert tree_of_the_readme() == modules


def test_the_command_line_reference_is_up_to_date(tmp_path: Path) -> None:
    arguments = [
        "utils",
        "docs",
        "--name",
        "seq2slate",
        "--title",
        "Command line",
        "--output",
        str(tmp_path / "cli.md"),
    ]
    subprocess.run(
        [sys.executable, "-m", "typer", "seq2slate.cli", *arguments], check=True, capture_output=True, cwd=ROOT
    )
    assert (ROOT / "docs" / "cli.md").read_text() == (tmp_path / "cli.md").read_text(), "run make docs"


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target
