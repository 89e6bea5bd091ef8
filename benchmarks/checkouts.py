"""Run Python in a checkout of this repository, so that two versions can be compared side by side."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_python(tree: Path, *arguments: str, check: bool = True) -> str:
    """Return what `python ARGUMENTS` prints with the package of a checkout, in its folder, on one thread.

    If it fails and is to be checked, this process ends too, with the end of its error output.
    """
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise SystemExit(f"{tree}: python {' '.join(arguments)} failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def new_parser(module_docstring: str | None, *, needs_before: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the option `--before PATH`, which names the other checkout."""
    parser = argparse.ArgumentParser(
        description=module_docstring, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--before", type=_checkout, required=needs_before, metavar="PATH",
        help="checkout of another version to compare with (git worktree add PATH COMMIT)",
    )  # fmt: skip
    return parser


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "seq2slate" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{path} is no checkout of seq2slate")
    return path


def checkouts(before: Path | None) -> dict[str, Path]:
    """Return the checkouts to look at by the heading of their columns; this one is `after` where there are two."""
    return {"now": ROOT} if before is None else {"before": before, "after": ROOT}
