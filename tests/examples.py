"""Runs the code blocks of a page in order: Python, commands, experiments in TOML, and HTTP requests."""

from __future__ import annotations

import argparse
import doctest
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from tests.services import Service

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SMALLER = {
    r"--lists \d+": "--lists 60",
    r"--requests \d+": "--requests 40",
    r"(traffic http\S+ \S+ --user \w+)$": r"\1 --requests 40",
    r"--until \S+": "--until 2100-01-01",  # what a page logs is logged today
    r"^(seq2slate train (?!.*--ranker).*)": r"\1 --epochs 1",
    r"^seq2slate demo$": "seq2slate demo --lists 60 --items 8",
    r"^seq2slate reproduce all( --quick| --full)?": "seq2slate reproduce figure3 --quick --data Fold1",
    r"^seq2slate reproduce battery": "seq2slate reproduce battery --quick --lists 30 --tests 20 --user position",
    r"^seq2slate reproduce logs": "seq2slate reproduce logs --quick",
    r"^seq2slate reproduce table1": "seq2slate reproduce figure3 --quick",
    r"make_synthetic_lists\([\d_]{3,}": "make_synthetic_lists(60",
}
"""What is done to a command or to Python without prompts, so that it takes seconds: patterns and replacements."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [Block(one[1], one[2], text.count("\n", 0, one.start()) + 1) for one in _BLOCK.finditer(text)]


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield the commands of a block, each with the output that the page shows.

    >>> list(commands_of("$ echo 'a\nb'\na\nb\n$ true  # yes\n"))
    [("echo 'a\nb'", 'a\nb'), ('true', '')]
    >>> list(commands_of("seq2slate a  # it's\nseq2slate b\n"))
    [('seq2slate a', ''), ('seq2slate b', '')]
    """
    prompts = "$ " in text[:2]
    command, output = "", list[str]()
    for line in [*text.splitlines(), None]:
        if command and _is_open(command) and line is not None:
            command += "\n" + line
            continue
        if line is None or not prompts or line.startswith("$ "):
            if command:
                yield _without_comment(command), "\n".join(output)
            command, output = (line or "").removeprefix("$ "), []
        else:
            output.append(line)


def _is_open(command: str) -> bool:
    """Whether a command goes on in the next line."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return command.endswith("\\")


def _without_comment(command: str) -> str:
    return re.sub(r"\s+# .*$", "", command.replace("\\\n", " ")).strip()


@dataclass
class PageRunner:
    """Runs the blocks of one page in a folder; services that it starts end with it."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    """What Python blocks know, and add to."""
    service: Service | None = None
    stand_ins: dict[str, str] = field(default_factory=dict)
    """Addresses and ids of the page, and those of this run."""

    def run(self, block: Block) -> None:
        """Run a block; an AssertionError or any other exception says that the page is wrong."""
        match block.language:
            case "python":
                self._run_python(block.text)
            case "toml":
                self._write_experiment(block.text)
            case "json":
                json.loads(block.text)
            case "" | "sh" | "console":
                for command, output in commands_of(block.text):
                    self._run_command(command, output)
            case other:
                raise AssertionError(f"no way to run a block of {other!r}")

    def stop(self) -> None:
        """Stop the service, if one runs."""
        if self.service is not None:
            assert self.service.stop() == 0, self.service.errors()
            self.service.__exit__(None, None, None)
            self.service = None

    def _run_python(self, text: str) -> None:
        if ">>> " not in text:
            exec(compile(smaller(text), "example", "exec"), self.names)
            return
        test = doctest.DocTestParser().get_doctest(text, self.names, "example", None, None)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        report: list[str] = []
        assert runner.run(test, out=report.append, clear_globs=False).failed == 0, "".join(report)
        self.names.update(test.globs)

    def _write_experiment(self, text: str) -> None:
        """Parse a TOML block, and write it to the file that its first line names, if it names one."""
        tomllib.loads(text)
        if named := re.search(r"^# .*--(?:experiment|logs) (\S+)", text):
            (self.folder / named[1]).write_text(text)

    def _run_command(self, command: str, output: str) -> None:
        for old, new in self.stand_ins.items():
            command = command.replace(old, new)
        program, *arguments = shlex.split(smaller(command).removesuffix("&").removeprefix("OMP_NUM_THREADS=1 "))
        match program:
            case "seq2slate" if arguments[0] == "serve":
                self._serve(arguments[1:])
            case "seq2slate":
                done = subprocess.run(
                    [sys.executable, "-m", "seq2slate.cli", *arguments], cwd=self.folder, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            case "curl":
                self._request(arguments, json.loads(output))
            case "make":
                assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
            case "python":
                assert arguments[0] == "-m"
                assert find_spec(arguments[1]) is not None, command
            case "pip":
                extras = re.findall(r"\[([\w,]+)\]", command)
                assert all(one in PROJECT["optional-dependencies"] for names in extras for one in names.split(","))
            case _:
                raise AssertionError(f"no way to run {program!r}")

    def _serve(self, arguments: list[str]) -> None:
        """Start a service on a free port, in place of the one before."""
        self.stop()
        port = arguments[arguments.index("--port") + 1] if "--port" in arguments else "8080"
        if "--port" in arguments:
            del arguments[arguments.index("--port") : arguments.index("--port") + 2]
        self.service = Service(*arguments, folder=self.folder)
        address = self.service.url.removeprefix("http://")
        self.stand_ins |= {f"{host}:{port}": address for host in ("localhost", "127.0.0.1")}

    def _request(self, arguments: list[str], expected: Mapping[str, Any]) -> None:
        """Send what curl would send; the response is that of the page, but for ids."""
        parser = argparse.ArgumentParser()
        parser.add_argument("url")
        for option in ("-H", "-d"):
            parser.add_argument(option, default="")
        parser.add_argument("-s", action="store_true")
        options = parser.parse_args(arguments)
        name, _, value = options.H.partition(": ")
        answer = httpx.post(f"http://{options.url}", content=options.d, headers={name: value}).json()
        if "slate_id" in expected:
            self.stand_ins[expected["slate_id"]] = answer["slate_id"]
        assert {**answer, "slate_id": None} == {**expected, "slate_id": None}


def smaller(text: str) -> str:
    """Apply `SMALLER` to a command or to Python."""
    for pattern, replacement in SMALLER.items():
        text = re.sub(pattern, replacement, text)
    return text
