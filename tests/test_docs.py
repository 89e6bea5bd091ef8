"""The documents say what is there, in the words of the field, and fit a screen."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from tools.oldest import lowest_versions
from tools.site import write_command_reference

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 120
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = ROOT / "docs" / "cli.md"
HISTORY = ROOT / "CHANGELOG.md"
"""Names what was renamed, so old words may occur in it."""
OLD_WORDS = {
    "user errors; invalid input": r"can mend",
    "similar; pairwise interaction": r"resembl",
    "stochastic; random": r"draws? lots|left to chance|\bluck\b",
    "train, validation, test": r"to learn from, to choose with|to report on|\bto choose with\b",
    "Adam learning rate": r"\bOf Adam\b",
    "credit assignment": r"answers? (only )?for (it|what)",
    "policy_gradient_weight": r"score_term",
    "options of the estimator": r"(?-i:\bChoices\b)|\b(train_model|fit_ranker|train_network)\b",
    "simulate_clicks": r"label_log",
    "click_model": r"make_user",
    "order_out_of_fold": r"cross_fit\b",
    "NaN or infinite": r"infinite or no number",
    "the invariant, by name": r"the caller has looked|the caller looked",
    "the connection is closed and reopened": r"hung up on|called again",
    "fixed-horizon": r"\b(at |for )?one (planned )?look\b",
    "always-valid": r"\b(at )?any look\b",
    "assigns, assigned": r"\bdeals? (units|all)\b|\bdealt\b",
}
"""What to say, and a pattern of what was said before."""


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
        for suffix in ("*.py", "*.pyi", "*.c", "*.h", "*.css")
        for path in (ROOT / "seq2slate").rglob(suffix)
        if path.name != "__init__.py" or _has_code(path)
    }
    assert tree_of_the_readme() == modules


def _has_code(path: Path) -> bool:
    """Whether a module has more than a docstring."""
    return len(ast.parse(path.read_text()).body) > 1


def test_the_command_line_reference_is_up_to_date(tmp_path: Path) -> None:
    write_command_reference(tmp_path / "cli.md")
    assert GENERATED.read_text() == (tmp_path / "cli.md").read_text(), "run make docs"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target, place in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text()):
        if target.startswith("https://"):
            continue
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not place or place in anchors(page), f"{target}#{place}"


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked() -> None:
    linked = {
        (path.parent / target).resolve()
        for path in PAGES
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
        if not target.startswith("https://")
    }
    entrances = {ROOT / "README.md", ROOT / "docs" / "index.md"}
    assert [page.name for page in PAGES if page not in linked | entrances] == []


@pytest.mark.parametrize("path", [path for path in PAGES if path != GENERATED], ids=lambda path: path.name)
def test_lines_fit_a_screen(path: Path) -> None:
    long = [
        f"line {number}: {len(line)} columns"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > COLUMNS and not line.startswith("|") and not re.search(r"\]\([^)]{40,}\)|https://", line)
    ]
    assert long == [], f"wrap at {COLUMNS} columns"


def test_no_page_has_the_marks_of_a_merge() -> None:
    marks = re.compile(r"^(<<<<<<<|=======|>>>>>>>)( |$)", re.MULTILINE)
    assert [page.name for page in [*PAGES, ROOT / "CHANGELOG.md"] if marks.search(page.read_text())] == []


def test_the_glossary_is_sorted_and_has_every_term_once() -> None:
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")][1:]
    terms = [row.split("|")[1].strip().lower().replace("-", " ") for row in rows]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def old_words(paths: list[Path]) -> list[str]:
    """Every place where one of the files uses an old word, with the word to use."""
    return [
        f"{path}:{number}: {found.group()!r}; say {better!r}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for better, pattern in OLD_WORDS.items()
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]


FILES_OF = {
    "documents": [path for path in PAGES if path not in (GENERATED, HISTORY)],
    "command line": [GENERATED],
    "package": sorted(path for path in (ROOT / "seq2slate").rglob("*") if path.suffix in (".py", ".c", ".h")),
}
"""Where old words are looked for. The help texts of the command line are those of its generated reference."""


@pytest.mark.parametrize("files", ["documents", "command line", "package"])
def test_the_words_are_those_of_the_field(files: str) -> None:
    assert old_words(FILES_OF[files]) == []


def test_an_old_word_is_found_with_the_word_to_use(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Units are assigned to arms.\nUnits are dealt to arms.\n")
    assert old_words([page]) == [f"{page}:2: 'dealt'; say 'assigns, assigned'"]


def test_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:seq2slate/|tests/)?[\w/]+\.(?:py|c)|\w+/(?:\w+/)*)`", text))
    folders = (ROOT, ROOT / "seq2slate", ROOT / "tests")
    assert len(named) > 40
    assert sorted(name for name in named if not any((folder / name).exists() for folder in folders)) == []


def test_the_examples_of_the_documents_import_what_exists() -> None:
    imports = {
        (page.name, module, name.strip())
        for page in PAGES
        for module, names in re.findall(r"^from (seq2slate[\w.]*) import (.+)$", page.read_text(), re.MULTILINE)
        for name in names.split(",")
    }
    assert len(imports) > 10
    assert [one for one in sorted(imports) if not _can_import(one[1], one[2])] == []


def _can_import(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ModuleNotFoundError:
        return False


def test_the_lowest_versions_are_those_of_the_project() -> None:
    project = {
        "dependencies": ["torch>=2.4,<3", "numpy"],
        "optional-dependencies": {
            "baselines": ["lightgbm>=4.5"],
            "serve": ["psycopg[binary]>=3.2.1", "uvloop>=0.21; sys_platform != 'win32'"],
            "tensorboard": [],
        },
    }
    assert lowest_versions(project) == ["torch==2.4", "lightgbm==4.5", "psycopg==3.2.1", "uvloop==0.21"]
