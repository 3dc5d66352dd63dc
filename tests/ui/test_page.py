"""The page in a real browser."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

from jobsdk import MLClient, command
from jobsdk.bootstrap.spec import paths

from .conftest import serve, submit


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
    one.wait_for_url(lambda url: "token" not in url)
    yield one
    context.close()
    assert wrong == []


def go(page: Page, name: str) -> None:
    page.goto(re.sub(r"/[^/]*$", f"/runs/{name}", page.url))


#: The button to cancel goes on asking whether it is meant, however late the second click comes.
PATIENT = """{ const later = setTimeout;
  window.setTimeout = (what, delay, ...given) => later(what, delay === 5000 ? 1e9 : delay, ...given); }"""


def test_a_run_is_followed_to_its_failure(page: Page, tmp_path: Path) -> None:
    run = submit(tmp_path, "wait")
    page.add_init_script(PATIENT)
    page.get_by_role("link", name="wait <img").click()
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.locator("#lines")).to_have_text("4 lines")
    expect(page.locator("#rows .row").first).to_contain_text("up ")
    assert page.locator("#rows img, #rows script, h1 img").count() == 0  # what a job writes is text
    log = Path(paths.rank_log(str(run.folder.path), 1, 3))
    with log.open("a") as file:
        file.write("one more line\n")
    expect(page.locator("#rows")).to_contain_text("one more line")
    expect(page.locator("#grid .running")).to_have_count(4)  # a rank may be heard of later than from
    page.locator("#rank-3").click()
    expect(page.locator("#lines")).to_have_text("2 lines")
    expect(page.locator("#rank-3")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#hint")).to_have_text(
        re.compile(r"rank 3: running, .*host .*, pid \d+, last output .* ago · one more line")
    )
    page.locator("#stacks").click()
    expect(page.locator("#where pre").first).to_contain_text(re.compile(r"ranks? .*at work\.py:\d+"))
    expect(page.locator("#where pre").last).to_contain_text(re.compile(r"rank 3, pid \d+: python work\.py wait"))
    page.locator("#cancel").click()
    expect(page.locator("#cancel")).to_have_text("Really cancel?")
    assert run.status == "Running"
    page.locator("#cancel").click()
    expect(page.locator("#status")).to_contain_text("Canceled")
    expect(page.locator("#rank-0")).to_have_class("cell stopped")


def test_what_went_wrong_and_every_tab(page: Page, tmp_path: Path) -> None:
    run = submit(tmp_path, "fail").wait(200)
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
    log = Path(paths.rank_log(str(run.folder.path), 0, 0))
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
    expect(page.locator("#words")).to_have_value("LINE 12345")
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
    expect(page.locator("#trouble")).to_have_text("x: write ranks as in 0,3-5 or last")
    page.locator("#view").scroll_into_view_if_needed()
    page.set_viewport_size({"width": 1100, "height": 400})
    page.evaluate("scrollTo(0, 9999)")
    expect(page.locator("#trouble")).to_be_in_viewport()
    for words, told in {
        "1-0": "1-0: write ranks as in 0,3-5 or last",
        "2,7": "there is no rank 7: the job has ranks 0 to 3",
        "last": "",
    }.items():
        page.locator("#only").fill(words)
        page.locator("#only").press("Enter")
        expect(page.locator("#trouble")).to_have_text(told)
    expect(page.locator("#lines")).to_have_text("1 line")
    page.locator("#cancel").click()
    page.keyboard.press("Escape")
    expect(page.locator("#cancel")).to_have_text("Cancel")
    run.cancel().wait(200)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_has_no_sideways_scrolling(page: Page, tmp_path: Path, scheme: str) -> None:
    run = submit(tmp_path, "end").wait(200)
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


def faults(page: Page) -> list[str]:
    """What a reader with a keyboard, a screen reader or weak eyes would miss."""
    found: list[str] = page.evaluate(Path(__file__).with_name("faults.js").read_text())
    return found


def test_keys_lead_through_the_page(page: Page, tmp_path: Path) -> None:
    run = submit(tmp_path, "end").wait(200)
    go(page, run.name)
    expect(page.locator("#lines")).to_have_text("4 lines")
    page.locator("header a").focus()
    way = []
    for _ in range(11):
        page.keyboard.press("Tab")
        way.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    # All ranks are one stop, and all tabs; buttons that do nothing now are none.
    assert way == ["rerun", "download", "report", "rank-0", "tab-log", "only", "words", "back", "on", "pause", "view"]
    page.locator("#rank-0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    expect(page.locator("#rank-3")).to_be_focused()
    expect(page.locator("#hint")).to_contain_text("rank 3: completed")
    page.keyboard.press("Enter")
    expect(page.locator("#lines")).to_have_text("1 line")
    page.locator("#tab-log").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#timeline svg")).to_be_visible()
    assert page.url.endswith("#timeline")
    page.reload()
    expect(page.locator("#tab-timeline")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(page: Page, tmp_path: Path, scheme: str) -> None:
    run = submit(tmp_path, "fail").wait(200)
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(page.url)
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    assert faults(page) == []
    go(page, run.name)
    expect(page.locator("#card")).to_be_visible()
    expect(page.locator("#rows .row").first).to_be_visible()
    assert faults(page) == []
    page.get_by_role("tab", name="Metrics").click()
    expect(page.locator("#metrics td")).to_have_text("0.4")
    assert faults(page) == []
    page.evaluate("""() => {
        document.getElementById("pause").textContent = "";
        document.getElementById("facts").style.color = getComputedStyle(document.body).backgroundColor;
    }""")
    assert [fault.split(":")[0].split()[0] for fault in faults(page)] == ["contrast"]  # what is hidden is no fault
    page.get_by_role("tab", name="Log").click()
    assert [fault.split(":")[0].split()[0] for fault in faults(page)] == ["no", "contrast"]


def test_the_logs_of_earlier_starts_can_be_seen(page: Page, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    script = 'echo start $JOBSDK_RESTART_COUNT; printf "1%%|\\r2%%|"; [ $JOBSDK_RESTART_COUNT = 1 ] || exit 3'
    job = command(command=script, code=tmp_path / "src", max_restarts=1, restart_delay=0.01)
    run = MLClient().jobs.create_or_update(job).wait(200)
    go(page, run.name)
    expect(page.locator("#rows")).to_have_text(re.compile(r"0start 1\s*02%\|"))
    expect(page.locator("#message")).to_have_text(re.compile(r"ended .* · ran for .* s · restarted 1 time$"))
    expect(page.locator("#facts")).to_contain_text("1 node, 1 process,")
    page.locator("#start").select_option("start 1 of 2")
    expect(page.locator("#rows")).to_have_text(re.compile(r"0start 0\s*02%\|"))
    page.locator("#start").select_option("latest start")
    expect(page.locator("#rows")).to_contain_text("start 1")


def test_a_run_that_there_is_not_offers_nothing(browser: object, address: str) -> None:
    one = browser.new_page()  # type: ignore[attr-defined]
    one.goto(address)
    one.wait_for_url(lambda url: "token" not in url)
    go(one, "nosuch")
    expect(one.locator("#trouble")).to_contain_text("there is no run named 'nosuch'")
    expect(one.locator("#run")).to_be_hidden()
    one.close()


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "while its news are not listened to"])
def test_a_run_that_is_deleted_while_it_is_looked_at(
    browser: object, address: str, tmp_path: Path, is_seen: bool
) -> None:
    run = submit(tmp_path, "wait")
    one = browser.new_page()  # type: ignore[attr-defined]
    one.goto(address)
    one.wait_for_url(lambda url: "token" not in url)
    held: list[Route] = []
    one.route("**/lines?*count=500*", lambda route: held.append(route))
    go(one, run.name)
    expect(one.locator("#lines")).to_have_text("4 lines")
    while not held:
        one.wait_for_timeout(10)
    if not is_seen:
        one.route("**/live", lambda route: route.fulfill(status=404))
        one.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    away = run.folder.path.rename(tmp_path / "away")
    with one.expect_response("**/lines?*count=500*"):
        held[0].continue_()  # what was asked for before is not there any more either
    expect(one.locator("#status")).to_have_text("Deleted")
    expect(one.locator("#trouble")).to_have_text("this run has been deleted")
    expect(one.locator("#actions")).to_be_hidden()
    one.close()
    away.rename(run.folder.path)
    run.cancel().wait(200)


def test_long_names_of_metrics_and_the_timeline_in_a_narrow_window(page: Page, tmp_path: Path) -> None:
    run = submit(tmp_path, "end").wait(200)
    reports = Path(paths.reports(str(run.folder.path), 0, 0, 0))
    reports.write_text(
        reports.read_text() + json.dumps({"t": 1, "rank": 0, "step": 1, "metrics": {"a/long/name" * 9: 0.25}}) + "\n"
    )
    page.set_viewport_size({"width": 380, "height": 800})
    go(page, run.name + "#metrics")
    value = page.get_by_role("cell", name="0.25", exact=True)
    expect(value).to_have_css("white-space", "nowrap")  # or each letter has a line of its own
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator("#timeline svg")).to_have_css("width", "760px")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_the_list_tells_runs_of_one_title_apart(page: Page, tmp_path: Path) -> None:
    runs = [submit(tmp_path, "fail").wait(200) for _ in range(2)]
    page.goto(page.url)
    expect(page.locator("#runs .badge")).to_have_text(["Failed (1)", "Failed (1)"])
    expect(page.locator("#runs td > .dim")).to_have_text([run.name for run in reversed(runs)])


def test_filters_stay_when_one_comes_back(page: Page, tmp_path: Path) -> None:
    submit(tmp_path, "end").wait(200)
    failed = submit(tmp_path, "fail").wait(200)
    page.goto(page.url)
    expect(page.locator("#runs tbody tr")).to_have_count(2)
    page.locator("#filters select").first.select_option("Failed")
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    page.locator("#runs a").click()
    expect(page.locator("#facts")).to_contain_text(failed.name)
    page.go_back()
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    expect(page.locator("#filters select").first).to_have_value("Failed")


def test_a_server_that_ends_and_one_that_comes_back(browser: object, tmp_path: Path) -> None:
    run = submit(tmp_path, "wait")
    server, address = serve()
    try:
        context = browser.new_context()  # type: ignore[attr-defined]
        one = context.new_page()
        one.goto(address)
        one.wait_for_url(lambda url: "token" not in url)
        go(one, run.name)
        expect(one.locator("#status")).to_have_text("Running")
        server.send_signal(signal.SIGINT)  # while its news are listened to
        said = server.communicate(timeout=200)[1]
        assert server.returncode in (0, 130)
        assert said.strip() in ("", "Aborted!")
        expect(one.locator("#trouble")).to_contain_text("the server does not answer")
        server, again = serve(re.findall(r":(\d+)/", address)[0])
        expect(one.locator("#trouble")).to_contain_text("has been started anew")
        two = context.new_page()
        two.goto(again)  # in another tab: the cookie is of both
        expect(one.locator("#trouble")).to_have_text("")
        run.cancel().wait(200)
        expect(one.locator("#status")).to_contain_text("Canceled")
        context.close()
    finally:
        server.kill()
        server.communicate()
