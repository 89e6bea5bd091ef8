"""Examples of docstrings as code blocks: a Griffe extension, which `zensical.toml` names.

Docstrings hold doctests as plain paragraphs. Markdown would take `>>>` for nested quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)
"""A prompt and all lines up to the next blank one."""


class DoctestBlocks(griffe.Extension):
    """Fences the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fence_doctests(obj.docstring.value)


def fence_doctests(text: str) -> str:
    """Return a docstring with each of its doctests in a code block."""
    return _EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)
