"""Build the documentation as a site of static pages, which works offline and from file://: `python -m tools.site`.

First `docs/cli.md` is written from the commands themselves. Then Zensical builds `site/` as `zensical.toml` says; a
broken link is an error. Its search loads a script from the network when the pages are opened from file://, which is
replaced by `docs/assets/worker.js`.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"
REFERENCE = ROOT / "docs" / "cli.md"
REMOTE_SCRIPT = "https://unpkg.com/iframe-worker/shim"
LOCAL_SCRIPT = "assets/worker.js"


def write_command_reference(path: Path) -> None:
    """Write every command with its options, as Markdown."""
    options = ("--name", "seq2slate", "--title", "Command line", "--output", str(path))
    subprocess.run([sys.executable, "-m", "typer", "seq2slate.cli", "utils", "docs", *options], check=True, cwd=ROOT)


def build_site() -> None:
    """Write the pages; raise CalledProcessError if a link or a reference leads nowhere."""
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], check=True, cwd=ROOT)
    for page in SITE.rglob("*.html"):
        to_root = "../" * len(page.relative_to(SITE).parent.parts)
        page.write_text(page.read_text().replace(REMOTE_SCRIPT, f"{to_root}{LOCAL_SCRIPT}"))


if __name__ == "__main__":
    write_command_reference(REFERENCE)
    build_site()
    print(f"open {SITE / 'index.html'}")
