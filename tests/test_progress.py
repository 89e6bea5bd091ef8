"""Progress bars: drawn in a terminal, silent in a pipe, and lines above them."""

import re
import threading

import pytest

from seq2slate.progress import ProgressBar, track


def drawn(capsys: pytest.CaptureFixture[str]) -> str:
    """What standard error has, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_description_count_state_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(7, "counting", completed=2) as bar:
        bar.update(advance=3, state="loss 0.5")
        bar.say("a line")
    text = drawn(capsys)
    assert re.search(r"counting .* 2/7", text)
    assert re.search(r"counting .* 5/7 loss 0\.5", text)
    assert "a line\n" in text


def test_a_pipe_gets_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(7, "counting") as bar:
        bar.update(advance=3, state="loss 0.5")
        bar.say("a [bold]line[/bold]")
    assert drawn(capsys) == "a [bold]line[/bold]\n"


@pytest.mark.usefixtures("terminal")
def test_quiet_is_silent_even_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(7, "counting", quiet=True) as bar:
        bar.update(advance=3)
        bar.say("a line")
    assert drawn(capsys) == ""


@pytest.mark.usefixtures("terminal")
def test_only_slow_steps_are_tracked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(track(range(3), "quick")) == [0, 1, 2]
    assert drawn(capsys) == ""
    monkeypatch.setattr("seq2slate.progress._PATIENCE", 0.0)
    assert list(track(iter(range(3)), "slow", total=3)) == [0, 1, 2]
    assert re.search(r"slow .* 3/3", drawn(capsys))


@pytest.mark.usefixtures("terminal")
def test_a_loop_that_breaks_leaves_no_bar_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seq2slate.progress._PATIENCE", 0.0)
    before = set(threading.enumerate())
    for step in track(range(5), "broken"):
        if step == 1:
            (drawing,) = set(threading.enumerate()) - before
            break
    drawing.join(timeout=10)
    assert not drawing.is_alive()
