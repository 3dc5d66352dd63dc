"""The search of the site, used as a reader does, finds the section that answers."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright import sync_api as playwright

from tests.docs.test_site import pytestmark as needs_mkdocs
from tests.docs.test_site import site
from tests.ui.conftest import chromium

__all__ = ["chromium", "site"]  # fixtures
pytestmark = [*needs_mkdocs, pytest.mark.engine("chromium")]

_PATIENCE_MS = 120_000  # until the page has read its index; a machine may be busy


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("words", ["restart after failure", "retry"])
def test_the_first_page_found_is_the_one_on_failures(address: str, chromium: str, words: str) -> None:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/index.html")
        ready = page.locator(".md-search-result__meta", has_text="Type to start")
        ready.wait_for(state="attached", timeout=_PATIENCE_MS)
        page.click("input.md-search__input")  # opens the results
        page.keyboard.type(words)
        page.wait_for_selector(".md-search-result__item", timeout=_PATIENCE_MS)
        found = page.locator(".md-search-result__item").first
        playwright.expect(found).to_contain_text("When a job fails")
        links = [link.get_attribute("href") or "" for link in found.locator("a").all()]
        assert any("failures.html" in link and "#restart-after-a-failure" in link for link in links[:3]), links
        browser.close()
