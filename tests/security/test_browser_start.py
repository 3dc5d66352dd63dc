"""Another user of the machine wants the token that `jobsdk ui` opens the browser with.

The program that `jobsdk ui` starts as the browser first looks, as that user, at the command lines of all processes and
at the file that the browser was given. Then it becomes a real Chromium.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

from tests.bootstrap.runs import wait_for
from tests.ui.conftest import chromium  # noqa: F401

_ROOT = Path(__file__).parents[2]
_OTHER_USER = 65534
_BROWSER = f"""#!{sys.executable}
import json, os, stat, sys
sys.path.insert(0, {str(_ROOT)!r})
from tests.security.test_browser_start import file_of, spy
seen, argv = sys.argv[1], sys.argv[2:]
file = file_of(argv[-1])
own = open(file).read() if file else ""
modes = [stat.S_IMODE(os.stat(one).st_mode) for one in (file, os.path.dirname(file)) if one]
with open(seen + ".new", "w") as out:
    json.dump({{"pid": os.getpid(), "address": argv[-1], "own": own, "modes": modes, "spied": spy(file)}}, out)
os.rename(seen + ".new", seen)
os.execv(argv[0], argv)
"""


class Spied(NamedTuple):
    """What another user has found out."""

    lines: str  # the command lines of all processes
    file: str
    refusal: str


def spy(file: str) -> Spied:
    """Look at this machine, and at one file, as another user."""
    script = """id -u; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; printf '\\0'; cat "$0"; exit 0"""
    done = subprocess.run(
        ["/bin/sh", "-c", script, file], capture_output=True, text=True, errors="replace", check=True, cwd="/",
        user=_OTHER_USER, group=_OTHER_USER, extra_groups=[],
    )  # fmt: skip
    uid, _, found = done.stdout.partition("\n")
    assert uid == str(_OTHER_USER)
    lines, _, content = found.partition("\0")
    return Spied(lines, content, done.stderr)


def file_of(address: str) -> str:
    """The path of a `file://` address; empty for others."""
    parts = urlsplit(address)
    return unquote(parts.path) if parts.scheme == "file" else ""


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A JOBSDK_HOME that every user may enter and list: it protects nothing of what is in it."""
    if os.getuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        home = Path(folder, "a home")
        home.mkdir(mode=0o755)
        monkeypatch.setenv("JOBSDK_HOME", str(home))
        yield home


@contextlib.contextmanager
def _served(ending: signal.Signals) -> Iterator[str]:
    """A `jobsdk ui` that opens the browser: the address that it prints."""
    argv = [sys.executable, "-m", "jobsdk", "ui"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(ending)
    assert server.returncode in (0, 128 + ending)


def _pages(home: Path) -> list[Path]:
    return list(home.rglob("*.html"))


def test_the_browsers_command_line_lets_nobody_in(
    open_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chromium: str,  # noqa: F811
) -> None:
    seen, profile, browser = tmp_path / "seen.json", tmp_path / "profile", tmp_path / "browser"
    browser.write_text(_BROWSER)
    browser.chmod(0o755)
    options = ["--headless", "--no-sandbox", f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    argv = [str(browser), str(seen), chromium, *options]
    monkeypatch.setenv("BROWSER", f"{shlex.join(argv)} %s &")
    told: dict[str, Any] = {}
    with _served(signal.SIGINT) as printed:
        base, _, token = printed.partition("?token=")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", base)
        try:
            wait_for(seen.exists)
            told = json.loads(seen.read_text())
            before = Spied(*told["spied"])
            _wait_for_list(profile, base)
            after = spy(file_of(told["address"]))
        finally:
            if told:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(told["pid"], signal.SIGKILL)  # BROWSER with & is started in a session of its own
        for spied in (before, after):  # no address of the server is on any command line, ...
            assert str(profile) in spied.lines
            assert base not in spied.lines
        (once,) = re.findall(r'url=[^"]*\?token=([\w-]{20,})', told["own"])
        assert once not in before.lines + after.lines
        assert once != token
        assert before.file == ""  # ... and only its owner could read the page that the browser was given
        assert "Permission denied" in before.refusal
        assert told["modes"] == [0o600, 0o700]
        assert _pages(open_home) == []  # it is gone now
        with urllib.request.urlopen(printed) as answer:  # what is printed lets in, from elsewhere too
            assert answer.status == 200


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_page_that_no_browser_has_opened_ends_with_the_server(
    open_home: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    monkeypatch.setenv("BROWSER", "true %s &")
    with _served(ending):
        (page,) = _pages(open_home)
        assert spy(str(page)).file == ""
    assert _pages(open_home) == []


def test_without_a_browser_there_is_no_page(open_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    with _served(signal.SIGINT) as printed:
        assert "/?token=" in printed
        assert _pages(open_home) == []


def _wait_for_list(profile: Path, base: str) -> None:
    """Wait until the Chromium of this profile shows the list of runs."""
    port = profile / "DevToolsActivePort"
    wait_for(port.exists)
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{port.read_text().split()[0]}")
        (page,) = browser.contexts[0].pages
        page.wait_for_url(base, timeout=120_000)
        page.wait_for_selector("#list:not([hidden])", timeout=120_000)
