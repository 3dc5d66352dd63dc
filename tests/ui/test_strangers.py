"""What a page of another server on this machine can do, in a real browser that has our cookie."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from .conftest import submit

#: Tries everything that a page can try, and says what came of it.
TRY = """async ([base, name]) => {
  const api = `${base}/api/runs/${name}`, found = {};
  const answered = promise => promise.then(() => "answered", () => "refused");
  found.read = await answered(fetch(api, {credentials: "include"}));
  found.simple = await answered(fetch(`${api}/cancel`, {method: "POST", mode: "no-cors", credentials: "include"}));
  found.asked = await answered(fetch(`${api}/cancel`, {method: "POST", credentials: "include",
                                                       headers: {"x-jobsdk": "1"}}));
  const event = (one, good, bad = "error") => new Promise(done => {
    one.addEventListener(good, () => done("answered")); one.addEventListener(bad, () => done("refused")); });
  const put = (tag, attributes) => document.body.appendChild(Object.assign(document.createElement(tag), attributes));
  found.news = await event(new EventSource(`${api}/live`, {withCredentials: true}), "message");
  found.socket = await event(new WebSocket(`${api}/live`.replace("http", "ws")), "open");
  found.script = await event(put("script", {src: `${base}/static/page.js`, type: "module"}), "load");
  found.image = await event(put("img", {src: `${base}/static/icon.svg`}), "load");
  const frame = put("iframe", {src: base});
  await event(frame, "load");
  try { found.frame = frame.contentDocument === null ? "refused" : "answered"; } catch { found.frame = "refused"; }
  return found;
}"""


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><body><a id=link>a link</a>")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(params=["127.0.0.1", "localhost"])
def other(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another server: of the same site as the page, or of another one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://{request.param}:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_page_gets_and_does_nothing(other: str, address: str, chromium: str, tmp_path: Path) -> None:
    run = submit(tmp_path, "wait")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            context = browser.new_context()
            ours, theirs = context.new_page(), context.new_page()
            ours.goto(address)
            expect(ours.locator("#runs tbody tr")).to_have_count(1)
            theirs.goto(other)
            tried = theirs.evaluate(TRY, [address.split("/?")[0], run.name])
            assert set(tried.values()) == {"refused"}, tried
            assert run.status == "Running"
            # But the printed address can be clicked anywhere, as in a terminal that is a page.
            theirs.evaluate("address => { document.getElementById('link').href = address; }", address)
            theirs.locator("#link").click()
            expect(theirs.locator("#runs tbody tr")).to_have_count(1)
            assert "token" not in theirs.url
            browser.close()
    finally:
        run.cancel().wait(200)
