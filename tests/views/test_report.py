"""A run as one HTML file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.views.markup import Markup, tag, text
from jobsdk.views.report import document

SCRIPT = """import json, os, time
rank = os.environ["RANK"]
print("\\x1b[31m<script>alert(1)</script>\\x1b[0m rank", rank, flush=True)
with open(os.environ["JOBSDK_REPORTS"], "w") as file:
    for step in range(3):
        point = {"t": time.time(), "rank": int(rank), "step": step, "metrics": {"loss<b>": 1 / (step + 1)}}
        print(json.dumps(point), file=file)
open("up-" + rank, "w").close()
while rank == "2" and not all(os.path.exists(f"up-{one}") for one in range(4)):
    time.sleep(0.01)
if rank == "2":
    raise SystemExit("</pre><img src=x onerror=alert(2)>")
time.sleep(600)
"""


class _Tags(HTMLParser):
    """What there is in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(name)
        self.attributes |= {key for key, _ in attrs}
        if name != "meta":
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def parsed(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("report")
    (folder / "work.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBSDK_HOME", str(folder / "home"))
        job = command(
            command="python work.py",
            code=folder,
            display_name="<i>mine</i>",
            secrets=["KEY"],
            environment_variables={"KEY": "hunter2", "OPEN": "to see"},
            distribution=PyTorchDistribution(process_count_per_instance=2),
            instance_count=2,
        )
        return MLClient().jobs.create_or_update(job).wait(200)


def test_everything_is_in_it(failed: Run) -> None:
    page = document(failed)
    for heading in ("What went wrong", "Ranks", "Where the time went", "Metrics", "Logs", "The job"):
        assert f"<h2>{heading}</h2>" in page
    assert len(re.findall('class="cell ', page)) == 4
    assert 'class="cell failed" title="rank 2: failed' in page
    assert "rank 2 on node 1 exited with code 1" in page
    assert "OPEN=to see" in page
    assert page.index("<summary>rank 2 on node 1: failed") < page.index("<summary>rank 0 on node 0")


def test_what_a_job_writes_is_text(failed: Run) -> None:
    page = document(failed)
    found = parsed(page)
    assert not found.tags & {"script", "img", "i", "b", "iframe", "link"}
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href")}
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; rank" in page


def test_no_secret_is_in_it(failed: Run) -> None:
    assert "hunter2" not in document(failed)


def test_a_run_that_has_only_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobsdk.runs.folder import RunFolder

    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path))
    parsed(document(Run(RunFolder.create("bare"))))


@given(st.text(), st.text())
def test_text_stays_text(inner: str, attribute: str) -> None:
    page = tag("p", inner, title=attribute)
    found = parsed(page)
    assert found.tags == {"p"}
    assert isinstance(text(Markup("<b>")), Markup)
    assert text(inner).count("<") == 0
