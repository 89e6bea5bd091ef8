"""How large the package is: modules, lines, the longest functions, the number of tests, and repeated code.

*Lines of code* leaves out blank lines, comments and docstrings, and so does the length of a function, which begins at
its `def`. The number of tests counts everything that pytest collects, slow tests and examples included. The search for
repeated code needs a command named `duplicates` on the path and is left out where there is none.

`python -m benchmarks.size [--before PATH]`
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.checkouts import checkouts, new_parser, run_python
from benchmarks.tables import print_table

LONG_FILE, LONG_FUNCTION, N_LONGEST = 400, 40, 10
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> set[int]:
    r"""Return the numbers of the lines that are neither blank nor part of a comment or a docstring.

    >>> sorted(code_lines('x = 1  # one\n\n# two\ndef f():\n    "Three."\n    return x\n'))
    [1, 4, 6]
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for token in tokens if token.type not in _LAYOUT for n in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def functions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of code and the name of every function, those inside of others included."""
    lines = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield len(lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))), node.name


def sizes(tree: Path) -> dict[str, str]:
    """Return the figures of a checkout by name."""
    package = tree / "seq2slate"
    sources = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
    by_length = sorted(
        ((n, f"{file}: {name}") for file, text in sources.items() for n, name in functions(text)), reverse=True
    )
    long_files = {file: n for file, text in sources.items() if (n := text.count("\n")) > LONG_FILE}
    return {
        "modules": f"{len(sources):,}",
        "lines of Python": f"{sum(text.count(chr(10)) for text in sources.values()):,}",
        "lines of code in Python": f"{sum(len(code_lines(text)) for text in sources.values()):,}",
        "lines of C": count_lines(package, "*.c", "*.h"),
        "lines of CSS": count_lines(package, "*.css"),
        f"files over {LONG_FILE} lines": "\n".join(f"{n} {file}" for file, n in long_files.items()) or "none",
        f"functions over {LONG_FUNCTION} lines of code": str(sum(n > LONG_FUNCTION for n, _ in by_length)),
        "tests": count_tests(tree),
        "places that share six or more lines": count_duplicates(package),
        "longest functions, in lines of code": "\n".join(f"{n} {name}" for n, name in by_length[:N_LONGEST]),
    }


def count_lines(folder: Path, *patterns: str) -> str:
    """Return how many lines the files of these names have, and how many files there are."""
    lengths = [path.read_text().count("\n") for pattern in patterns for path in folder.rglob(pattern)]
    return f"{sum(lengths):,} in {len(lengths)} files"


def count_tests(tree: Path) -> str:
    """Return how many tests pytest collects, and its errors if there are any."""
    options = ["--collect-only", "-q", "-m", "slow or not slow", "-p", "no:cacheprovider"]
    last_line = run_python(tree, "-m", "pytest", *options, check=False).splitlines()[-1]
    return last_line.replace(" tests collected", "").partition(" in ")[0]


def count_duplicates(folder: Path) -> str:
    """Return how many pairs of places repeat each other: to the letter, but for names and values, or as boilerplate."""
    command = shutil.which("duplicates")
    if command is None:
        return "not counted: there is no command `duplicates` here"
    words = [command, "--repo", str(folder), "--most", "200", "--seconds", "120"]
    rows = re.findall(r"^D\d+ .*", subprocess.run(words, capture_output=True, text=True, check=True).stdout, re.M)
    kinds = Counter(
        "boilerplate" if "boilerplate" in row else "same shape" if " shape" in row else "same text" for row in rows
    )
    return ", ".join(f"{kinds[kind]} {kind}" for kind in ("same text", "same shape", "boilerplate"))


def main() -> None:
    """Print the figures of each checkout beside each other."""
    found = {name: sizes(tree) for name, tree in checkouts(new_parser(__doc__).parse_args().before).items()}
    names = next(iter(found.values()))
    print_table("Size of seq2slate", [{"": name} | {tree: found[tree][name] for tree in found} for name in names])


if __name__ == "__main__":
    main()
