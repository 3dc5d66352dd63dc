"""The page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from jobsdk.bootstrap import layout

from .conftest import submit


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[object]:
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def page(browser: object, address: str) -> Iterator[Page]:
    """A page that has been entered; whatever goes wrong in its scripts fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})  # type: ignore[attr-defined]
    one = context.new_page()
    wrong: list[str] = []
    one.on("pageerror", lambda error: wrong.append(str(error)))
    one.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    one.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    one.goto(address)
    yield one
    context.close()
    assert wrong == []


def go(page: Page, name: str) -> None:
    page.goto(re.sub(r"/[^/]*$", f"/runs/{name}", page.url))


def test_a_run_is_followed_to_its_failure(page: Page, tmp_path: Path) -> None:
    assert "token" not in page.url
    run = submit(tmp_path, "wait")
    page.get_by_role("link", name="wait <img").click()
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.locator("#lines")).to_have_text("4 lines")
    expect(page.locator("#rows .row").first).to_contain_text("up ")
    assert page.locator("#rows img, #rows script, h1 img").count() == 0  # what a job writes is text
    log = Path(layout.rank_log(str(run.folder.path), 1, 3))
    with log.open("a") as file:
        file.write("one more line\n")
    expect(page.locator("#rows")).to_contain_text("one more line")
    page.locator("#rank-3").click()
    expect(page.locator("#lines")).to_have_text("2 lines")
    expect(page.locator("#rank-3")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#rank-3")).to_have_attribute("title", re.compile(r"rank 3: running, host .*, pid \d+\n"))
    page.locator("#stacks").click()
    expect(page.locator("#where pre").first).to_contain_text(re.compile(r"ranks? .*at work\.py:\d+"))
    expect(page.locator("#where pre").last).to_contain_text(re.compile(r"rank 3, pid \d+: python work\.py wait"))
    page.locator("#cancel").click()
    expect(page.locator("#status")).to_contain_text("Canceled", timeout=60_000)
    expect(page.locator("#rank-0")).to_have_class("cell stopped")


def test_what_went_wrong_and_every_tab(page: Page, tmp_path: Path) -> None:
    run = submit(tmp_path, "fail").wait(60)
    go(page, run.name)
    expect(page.locator("#card")).to_contain_text("rank 2 on node 1 exited with code 1: ValueError: bad batch <img")
    expect(page.locator("#rank-2")).to_have_class("cell failed")
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator("#timeline svg")).to_contain_text("first line")
    page.get_by_role("tab", name="Metrics").click()
    expect(page.locator("#metrics svg").first).to_contain_text("loss<img")
    page.locator("#rank-1").click()
    page.get_by_role("tab", name="Environment").click()
    expect(page.locator("#environment")).to_contain_text("LOCAL_RANK=1")
    page.get_by_role("tab", name="Job").click()
    expect(page.locator("#spec")).to_contain_text("process_count_per_instance: 2")
    assert page.locator("main img").count() == 0
    with page.expect_download() as download:
        page.locator("#download").click()
    assert download.value.suggested_filename == f"{run.name}.zip"


def test_keys_search_and_pause(page: Page, tmp_path: Path) -> None:
    run = submit(tmp_path, "wait")
    log = Path(layout.rank_log(str(run.folder.path), 0, 0))
    run.folder.path.joinpath("logs/node-0").mkdir(exist_ok=True)
    go(page, run.name)
    expect(page.locator("#lines")).to_have_text("4 lines")
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(200_000))
    expect(page.locator("#lines")).to_have_text("200,004 lines")
    expect(page.locator("#rows")).to_contain_text("line 199999")  # the end is followed
    page.locator("#view").press("/")
    expect(page.locator("#words")).to_be_focused()
    page.keyboard.type("LINE 12345")
    expect(page.locator("#hits")).to_have_text("1 of 11")  # and 123450 to 123459
    expect(page.locator(".row.here")).to_contain_text("line 12345")
    page.keyboard.press("Enter")
    expect(page.locator(".row.here")).to_contain_text("line 123450")
    assert page.locator("#rows .row").count() < 100  # only what is seen is there
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_text("Go on")
    with log.open("a") as file:
        file.write("while it was paused\n")
    page.locator("#pause").click()
    expect(page.locator("#rows")).to_contain_text("while it was paused")
    page.locator("#only").fill("1-2, 3")
    page.locator("#only").press("Enter")
    expect(page.locator("#lines")).to_have_text("3 lines")
    page.locator("#only").fill("x")
    page.locator("#only").press("Enter")
    expect(page.locator("#trouble")).to_have_text("x: write ranks as in 0,3-5")
    run.cancel().wait(60)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_has_no_sideways_scrolling(page: Page, tmp_path: Path, scheme: str) -> None:
    run = submit(tmp_path, "end").wait(60)
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 360, "height": 700})
    for where in (None, run.name):
        if where:
            go(page, where)
            expect(page.locator("#lines")).to_have_text("4 lines")
        else:
            expect(page.locator("#runs tbody tr")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
