"""API keys."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seq2slate.cli import app
from seq2slate.errors import DataError, UsageError
from seq2slate.serving.keys import KeyRing, add_key, read_keys, revoke_key


def test_a_key_opens_what_it_is_for_until_it_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    serve, admin = add_key(file, "serve"), add_key(file, "admin", "the page")
    ring = KeyRing(file)
    assert (ring.scope_of(serve), ring.scope_of(admin)) == ("serve", "admin")
    for wrong in ("", serve[:-1], serve + "x", serve.partition(".")[2], read_keys(file)[0].sha256, "\ud800"):
        assert ring.scope_of(wrong) is None
    revoke_key(file, serve.partition(".")[0])
    assert (ring.scope_of(serve), ring.scope_of(admin)) == (None, "admin")
    file.unlink()
    assert ring.scope_of(admin) is None


def test_the_file_has_no_key(tmp_path: Path) -> None:
    keys = [add_key(tmp_path / "keys.json", "serve") for _ in range(3)]
    text = (tmp_path / "keys.json").read_text()
    assert not any(key.partition(".")[2] in text for key in keys)
    assert len(set(keys)) == 3


def test_wrong_files_and_ids_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(DataError, match="No such file"):
        KeyRing(file)
    file.write_text("[]")
    with pytest.raises(UsageError, match="has no keys"):
        KeyRing(file)
    file.write_text('[{"id": "a", "scope": "root", "sha256": "", "created": 0}]')
    with pytest.raises(DataError, match="root"):
        KeyRing(file)
    file.write_text("[]")
    with pytest.raises(UsageError, match="no key 'zz'"):
        revoke_key(file, "zz")


def test_six_processes_that_add_keys_at_once_lose_none(tmp_path: Path) -> None:
    file, start = tmp_path / "keys.json", tmp_path / "start"
    code = (
        "import sys, time; from pathlib import Path; from seq2slate.serving.keys import add_key, revoke_key\n"
        "print('ready', flush=True)\n"
        f"while not Path({str(start)!r}).exists(): time.sleep(0.001)\n"
        "for n in range(10):\n"
        f"    spare = add_key({str(file)!r}, 'serve', 'spare')\n"
        f"    print(add_key({str(file)!r}, 'serve').partition('.')[0])\n"
        f"    revoke_key({str(file)!r}, spare.partition('.')[0])\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    start.touch()
    added = [line for process in processes for line in process.communicate(timeout=60)[0].split()]
    assert [process.returncode for process in processes] == [0] * 6
    assert len(added) == 60
    assert sorted(key.id for key in read_keys(file)) == sorted(added)


def test_the_commands(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    run = CliRunner().invoke
    key = run(app, ["keys", "add", file, "--scope", "admin", "--note", "mine"]).output.strip()
    listed = run(app, ["keys", "list", file]).output
    assert listed.split()[:2] == [key.partition(".")[0], "admin"]
    assert "mine" in listed
    assert key not in listed
    assert "revoked" in run(app, ["keys", "revoke", file, key.partition(".")[0]]).output
    assert run(app, ["keys", "list", file]).output == ""
