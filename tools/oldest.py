"""Print the lowest versions that pyproject.toml admits, as constraints for pip: what `make test-oldest` installs."""

import re
import tomllib
from pathlib import Path
from typing import Any

EXTRAS = ("baselines", "serve", "tensorboard")
"""What a user may install beside the package; the tools for tests are the newest that fit."""


def lowest_versions(project: dict[str, Any]) -> list[str]:
    """Return `name==version` for every lower bound among the dependencies of a [project] table."""
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    found = [re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", one) for one in requirements]
    return [f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    print(*lowest_versions(tomllib.loads(Path("pyproject.toml").read_text())["project"]), sep="\n")
