"""What the page's server answers."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsdk.runs.folder import RunFolder
from tests.bootstrap.runs import wait_for

from .conftest import EVIL, submit

POST = {"x-jobsdk": "1"}


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_failed_run(client: TestClient, tmp_path: Path) -> None:
    run = submit(tmp_path, "fail").wait(200)
    api = f"/api/runs/{run.name}"
    all_of_it = get(client, api)
    assert (all_of_it["status"], all_of_it["exit_code"], all_of_it["culprit"]) == ("Failed", 1, 2)
    assert all_of_it["counts"] == {"failed": 1, "stopped": 3}
    assert [rank[2] for rank in all_of_it["ranks"]] == ["stopped", "stopped", "failed", "stopped"]
    assert all_of_it["layout"] == "2 nodes, 4 processes"
    assert "rank 2 on node 1 exited with code 1: ValueError: bad batch" in all_of_it["card"]
    found = get(client, f"{api}/lines", first=0, count=100)
    assert found["total"] == all_of_it["lines"] == len(found["lines"])
    assert {(rank, text) for _, rank, text in found["lines"]} >= {(rank, f"up {rank} {EVIL}") for rank in range(4)}
    only = get(client, f"{api}/lines", first=0, count=100, ranks="2")
    assert {rank for _, rank, _ in only["lines"]} == {2}
    numbers = [number for number, _, text in only["lines"] if "bad batch" in text]
    assert get(client, f"{api}/find", words="BAD BATCH", ranks="2") == {"numbers": numbers, "is_all": True}
    one = get(client, f"{api}/ranks/2")
    assert (one["node"], one["exit_code"], one["environment"]["EVIL"]) == (1, 1, EVIL)
    assert one["last"].startswith("ValueError: bad batch")
    timeline = get(client, f"{api}/timeline")
    assert timeline["phases"][0]["name"] == "submit"
    assert "<svg" in timeline["svg"]
    metrics = get(client, f"{api}/metrics")
    assert metrics["last"] == {f"loss{EVIL}": 0.4}
    assert "<img" not in metrics["svg"]
    assert "command: python work.py fail" in get(client, f"{api}/native")["job"]
    page = client.get(f"{api}/report")
    assert page.headers["content-disposition"] == f'attachment; filename="{run.name}.html"'
    assert "<script" not in page.text
    with zipfile.ZipFile(io.BytesIO(client.get(f"{api}/download").content)) as archive:
        assert "logs/node-1/rank-2.log" in archive.namelist()


def test_a_run_again(client: TestClient, tmp_path: Path) -> None:
    run = submit(tmp_path, "end").wait(200)
    answer = client.post(f"/api/runs/{run.name}/rerun", headers=POST)
    again = answer.json()["name"]
    assert again != run.name
    wait_for(lambda: get(client, f"/api/runs/{again}")["status"] == "Completed")


def test_news_of_a_run_come_until_its_end(client: TestClient, tmp_path: Path) -> None:
    run = submit(tmp_path, "wait")
    wait_for(lambda: get(client, f"/api/runs/{run.name}")["lines"] == 4)

    def places() -> list[str]:
        groups: list[str] = client.post(f"/api/runs/{run.name}/stacks", headers=POST).json()["groups"]
        return groups

    wait_for(lambda: any("4 ranks " in line for line in places()))  # all of them sleep by then
    assert client.post(f"/api/runs/{run.name}/cancel", headers=POST).json()["status"] in ("CancelRequested", "Canceled")
    told = client.get(f"/api/runs/{run.name}/live").text.strip().split("\n\n")
    assert told[-1].startswith("event: over")
    statuses = [json.loads(line.removeprefix("data: "))["status"] for line in told[:-1]]
    assert statuses[-1] == "Canceled"


def test_the_list_and_its_filters(client: TestClient, tmp_path: Path) -> None:
    ended, failed = submit(tmp_path, "end").wait(200), submit(tmp_path, "fail").wait(200)

    def names(**query: str) -> list[str]:
        return [run["name"] for run in get(client, "/api/runs", **query)["runs"]]

    assert names() == [failed.name, ended.name]
    assert names(status="Failed") == [failed.name]
    assert names(words="END ") == [ended.name]
    assert names(experiment="looks", compute="local") == [failed.name, ended.name]
    assert names(experiment="other") == names(tag="x") == []


@pytest.mark.parametrize(
    "path", ["lines?first=-1", "lines?count=9999", "lines?ranks=a", "lines?first=x", "ranks/4", "ranks/99"]
)
def test_requests_that_the_page_would_not_make(client: TestClient, tmp_path: Path, path: str) -> None:
    run = submit(tmp_path, "end").wait(200)
    answer = client.get(f"/api/runs/{run.name}/{path}")
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_an_action_that_cannot_be_done_says_why(client: TestClient, tmp_path: Path) -> None:
    run = submit(tmp_path, "end").wait(200)
    answer = client.post(f"/api/runs/{run.name}/stacks", headers=POST)
    assert answer.status_code == 409
    assert "has ended" in answer.json()["error"]


def test_a_run_that_has_no_ranks_yet(client: TestClient) -> None:
    RunFolder.create("bare")
    assert get(client, "/api/runs/bare")["layout"] == "no nodes yet"
    answer = client.get("/api/runs/bare/ranks/0")
    assert (answer.status_code, answer.json()) == (400, {"error": "there is no rank 0 yet"})
