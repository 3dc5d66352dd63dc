"""Jobs, explanations and runs as they show themselves in a notebook, looked at in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import Page, expect, sync_playwright

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.views import cards
from tests.bootstrap.runs import wait_for
from tests.notebook.kernel import Kernel, jupyter_of_its_own
from tests.ui.conftest import EVIL, chromium

__all__ = ["chromium"]  # a fixture

WORK = f"""import os, sys, time
from tqdm import tqdm
for step in tqdm(range(4), file=sys.stdout):
    pass
print("up", os.environ["RANK"], {EVIL!r}, flush=True)
while not os.path.exists({{go!r}}):
    time.sleep(0.01)
if os.environ["RANK"] == "1" and {{fails}}:
    raise ValueError("bad batch")
"""
CELLS = f"""from jobsdk import MLClient, PyTorchDistribution, command
job = command(command="python work.py ${{{{inputs.rate}}}}", code="src",
              display_name="mine {EVIL}", environment_variables={{"A": "b"}},
              inputs={{"rate": 0.1}}, distribution=PyTorchDistribution(process_count_per_instance=2), instance_count=2)
job
---
job.explain()
---
import pathlib
run = MLClient().jobs.create_or_update(job)
run
---
pathlib.Path("go").touch()
import threading
run.wait(60)
# Within this cell: nbclient drops a display's update that arrives between two cells.
[one.join(60) for one in threading.enumerate() if one.name == "jobsdk-card"]
---
run
---
command(command="python work.py --rate ${{{{inputs.rat}}}}", inputs={{"rate": 1}})
"""


@pytest.fixture(scope="module", params=[False, True], ids=["completed", "failed"])
def notebook(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, nbformat.NotebookNode, Path]:
    """A notebook that has been run: whether its job fails, its content, and itself as a page."""
    folder = tmp_path_factory.mktemp("cards")
    (folder / "src").mkdir()
    (folder / "src/work.py").write_text(WORK.format(go=str(folder / "go"), fails=request.param))
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS.split("---\n")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBSDK_HOME", str(folder / "home"))
        jupyter_of_its_own(folder, patch)
        NotebookClient(content, kernel_name="python3", timeout=120, resources={"metadata": {"path": folder}}).execute()
    page, _ = HTMLExporter().from_notebook_node(content)
    (folder / "page.html").write_text(page)
    return request.param, content, folder / "page.html"


@pytest.fixture
def page(notebook: tuple[bool, nbformat.NotebookNode, Path], chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        one = browser.new_page(viewport={"width": 1000, "height": 900})
        one.route(re.compile("^https?:"), lambda route: route.abort())  # what nbconvert's own page would fetch
        one.goto(notebook[2].as_uri())
        yield one
        browser.close()


@pytest.mark.framework("jupyter")
def test_cards_in_a_browser(page: Page, notebook: tuple[bool, nbformat.NotebookNode, Path]) -> None:
    fails, _, _ = notebook
    job, explained, live, ended, wrong = page.locator(".jobsdk").all()
    expect(job).to_contain_text("mine <img src=x")
    expect(job).to_contain_text("2 nodes, 4 processes")
    expect(job.locator(".cell")).to_have_count(4)
    expect(explained.locator("tr").nth(4)).to_contain_text("3")
    expect(explained.locator("th", has_text="LOCAL_RANK")).to_be_visible()
    for card in (live, ended):  # the live one has come to the end, where it was
        expect(card.locator(".badge")).to_have_text("Failed" if fails else "Completed")
        expect(card.locator(".cell")).to_have_count(4)
    if fails:
        expect(live.locator("pre.card")).to_contain_text("rank 1 on node 0 exited with code 1: ValueError: bad batch")
        expect(live.locator(".cell.failed")).to_have_text("1")
    else:
        expect(live.locator("pre")).to_contain_text(re.compile(r"\[\d\] up \d <img src=x"))
    expect(wrong.locator(".badge")).to_have_text("cannot run")
    expect(wrong).to_contain_text("did you mean 'rate'?")
    assert page.locator(".jobsdk img, .jobsdk script").count() == 0  # what a job writes is text
    assert page.evaluate("getComputedStyle(document.querySelector('.jobsdk .cell')).height") != "0px"


#: What JupyterLab says of all tables, in a style sheet that comes after the cards'.
LAB = """.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th { text-align: right; white-space: normal; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: rgb(9, 9, 9); }"""


@pytest.mark.framework("jupyter")
def test_tables_are_ours_within_jupyterlab(page: Page) -> None:
    page.add_style_tag(content=LAB)
    explained = page.locator(".jobsdk").nth(1)
    cell = explained.locator("td").first
    assert explained.evaluate("card => card.closest('.jp-RenderedHTMLCommon') !== null")
    assert cell.evaluate("cell => getComputedStyle(cell).textAlign") == "left"
    assert cell.evaluate("cell => getComputedStyle(cell.parentElement).backgroundColor") == "rgba(0, 0, 0, 0)"
    assert explained.evaluate("card => card.scrollWidth <= card.clientWidth"), "what is wide scrolls within the card"
    assert cell.evaluate("cell => cell.parentElement.clientHeight") < 40, "a row is one line"


@pytest.mark.framework("jupyter")
def test_there_is_plain_text_everywhere(notebook: tuple[bool, nbformat.NotebookNode, Path]) -> None:
    _, content, _ = notebook
    for cell in content.cells:
        for output in cell.outputs:
            assert output.output_type in ("execute_result", "display_data")
            assert output.data["text/plain"]


def test_a_live_card_changes_while_the_cell_below_runs(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = f"echo up; until [ -e {go} ]; do sleep 0.05; done"
    cell = kernel.run(
        f"from jobsdk import MLClient, command\nrun = MLClient().jobs.create_or_update(command(command={text!r}))\nrun"
    )
    assert cell.error is None
    assert "Completed" not in cell.displayed[0]
    name = cell.display_ids[0]
    go.touch()
    pages: list[str] = []
    kernel.until_update(name, lambda html: pages.append(html) or "Completed" in html)
    assert f"<summary><code>{text}</code></summary>" in pages[-1]


def test_without_a_notebook_a_run_is_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    run = MLClient().jobs.create_or_update(command(command="true"))
    with pytest.raises(NotImplementedError):
        run._ipython_display_()
    run.wait(200)
    assert set(run._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_progress_of_tqdm() -> None:
    assert cards.progress(["[0]  45%|####      | 45/100", "[1] done"]) == 45
    assert cards.progress(["45% of it"]) is None


def test_many_ranks_are_drawn_in_part() -> None:
    job = command(command="true", distribution=PyTorchDistribution(process_count_per_instance=8), instance_count=128)
    page = job._repr_html_()
    assert page.count('class="cell ') == 256
    assert "and 768 more ranks" in page
    assert "and 1008 more likewise" in job.explain()._repr_html_()


def test_a_run_of_a_function_ends_with_its_value(tmp_path: Path) -> None:
    from jobsdk import function

    run = function(sum, [1, 2, 39]).submit()
    wait_for(run.done)
    assert "<code>42</code>" in run._repr_mimebundle_()["text/html"]
