"""The documentation site is built without a warning: links and anchors lead somewhere, every page is in the menu."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import jobsdk
from jobsdk import plugin, train
from jobsdk.cli import cli
from jobsdk.client.operations import JobOperations, MLClient
from jobsdk.client.run import Run
from tests.docs.snippets import ROOT, pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None and os.environ.get("JOBSDK_REQUIRE_ENGINES") != "1",
        reason="mkdocs is not installed: pip install 'jobsdk[docs]'",
    ),
]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(site)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    missing = [page for page in pages()[1:] if not (site / page.removeprefix("docs/")).with_suffix(".html").is_file()]
    assert not missing
    assert (site / "reference/job-file.html").is_file()


def test_pages_ask_for_nothing_from_elsewhere(site: Path) -> None:
    """No fonts, no scripts and no pictures of other servers: the site works where there is no network."""
    loaded = re.compile(r'<(?:script|img|iframe)[^>]*src="(https?:)?//|<link[^>]*href="(https?:)?//[^>]*stylesheet')
    assert not [path.name for path in site.rglob("*.html") if loaded.search(path.read_text())]


def test_lists_and_tables_are_such(site: Path) -> None:
    """MkDocs' Markdown takes them for text where no blank line is before them."""
    found = {}
    for path in site.rglob("*.html"):
        text = re.sub(
            r"(?s)<(pre|code)\b.*?</\1>", "", path.read_text().partition("<article")[2].partition("</article")[0]
        )
        if wrong := re.findall(r"\n(?:\||- |\d+\. ).{0,50}", text):
            found[path.name] = wrong
    assert not found
    assert "<li>buttons: Cancel" in (site / "ui.html").read_text()


def test_the_python_reference_has_every_public_name(site: Path) -> None:
    html = (site / "reference/python.html").read_text()
    described = set(re.findall(r'id="jobsdk\.([\w.]+)"', html))
    public = {*jobsdk.__all__} - {"__version__"}
    public |= {f"train.{name}" for name in train.__all__} | {f"plugin.{name}" for name in plugin.__all__}
    homes = {"MLClient": MLClient, "client.operations.JobOperations": JobOperations, "client.run.Run": Run}
    for home, kind in homes.items():
        public |= {f"{home}.{name}" for name in vars(kind) if not name.startswith("_") and callable(vars(kind)[name])}
    assert len(public) > 90
    assert public - described == set()


def test_the_command_line_reference_has_every_command_and_option(site: Path) -> None:
    html = (site / "reference/cli.html").read_text()
    assert "Sentinel" not in html
    listed = dict(commands(cli, "jobsdk"))
    assert len(listed) > 30
    for path, command in listed.items():
        assert f'id="{path.replace(" ", "-")}"' in html, path
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in html, f"{path} {option.opts[0]}"


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            if not found.hidden:
                yield from commands(found, f"{path} {name}")


def test_links_of_the_readme_lead_somewhere(site: Path) -> None:
    for page, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", (ROOT / "README.md").read_text()):
        assert (ROOT / page).is_file(), page
        if not page.startswith("docs/"):
            continue
        html = (site / page.removeprefix("docs/")).with_suffix(".html").read_text()
        assert not anchor or f'id="{anchor}"' in html, f"{page}#{anchor}"


@pytest.mark.parametrize("text", ["[a](b.md)", "[a](c.md#nowhere)", "[a](/c.md)"])
def test_a_broken_link_fails(text: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# One\n\n[c](c.md), {text}\n")
    (tmp_path / "docs/c.md").write_text("# Two\n")
    config = re.sub(r"(?s)\nnav:.*|hooks: .*?\n", "\n", (ROOT / "mkdocs.yml").read_text())
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "WARNING" in done.stderr
