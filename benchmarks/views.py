"""Looking at a run: from its address to the first lines of a million, a new line on the page, cards of 1,024 ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.harness import Figures, Row, Table
from jobsdk import PyTorchDistribution, command
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.system import processes
from jobsdk.runs.folder import RunFolder

_NODES, _PROCESSES = 8, 8


def _folder(lines: int) -> RunFolder:
    """A run of 64 ranks that goes on, with so many lines in all."""
    run = RunFolder.create("looked-at")
    ranks = _NODES * _PROCESSES
    distribution = {"type": "pytorch", "processes": _PROCESSES, "launcher": "direct"}
    run.write_json("plan.json", {"run": run.name, "nodes": _NODES, "distribution": distribution})
    run.write_json("run.json", {"name": run.name, "created": time.time(), "nodes": _NODES, "processes": ranks})
    run.append_event("submitted", by=os.getpid())
    run.write_json("owner.json", {"pid": os.getpid(), "start": processes.start_time(os.getpid())})
    run.append_event("started", restart=0)
    for rank in range(ranks):
        run.append_event("rank_started", node=rank // _PROCESSES, rank=rank, pid=1)
        place = str(run.path), rank // _PROCESSES, rank
        os.makedirs(os.path.dirname(paths.rank_log(*place)), exist_ok=True)
        with open(paths.rank_log(*place), "w") as log, open(paths.times(*place), "w") as times:
            for step in range(lines // ranks):
                log.write(f"rank {rank} step {step} loss 0.12345 throughput 1234 images/s lr 0.001\n")
                if step % 100 == 99:
                    times.write(f"{step + rank / 100:.3f} {log.tell()}\n")
    return run


class _Page:
    """A server that has been started anew, and knows nothing of the run yet."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "jobsdk", "ui", "--no-open"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self._base, self._token = address.split("/?token=")

    def get(self, path: str) -> bytes:
        headers = {"authorization": f"Bearer {self._token}"}
        with urllib.request.urlopen(urllib.request.Request(self._base + path, headers=headers)) as answer:
            content: bytes = answer.read()
            return content

    def memory(self) -> float:
        """Megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+)", status)
        return int(found[1]) / 1000 if found else 0.0


@contextlib.contextmanager
def _page() -> Iterator[_Page]:
    page = _Page()
    try:
        yield page
    finally:
        page.process.terminate()
        page.process.wait()


def _open(run: RunFolder, total: int) -> Figures:
    """As the page does it: the run's state, how long the log is, the lines at its end."""
    with _page() as page:
        page.get("/")
        began = time.perf_counter()
        page.get(f"/api/runs/{run.name}")
        found = {"total": 0, "lines": []}
        while found["total"] < total:  # on a slow disk the logs are read in several parts
            found = json.loads(page.get(f"/api/runs/{run.name}/lines?first={total - 100}&count=100"))
        seconds = time.perf_counter() - began
        assert (found["total"], len(found["lines"])) == (total, 100)
        return {"first lines": seconds, "memory": page.memory()}


def _open_bare(run: RunFolder) -> Figures:
    """The least that must be done: read it all, and the end of one."""
    logs = sorted(map(str, run.logs.glob("node-*/rank-*.log")))
    began = time.perf_counter()
    subprocess.run(["wc", "-l", *logs], stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["tail", "-n", "100", logs[-1]], stdout=subprocess.DEVNULL, check=True)
    return {"first lines": time.perf_counter() - began}


def _follow(run: RunFolder, count: int) -> Figures:
    log, waits = paths.rank_log(str(run.path), 0, 0), []
    with _page() as page:
        total = json.loads(page.get(f"/api/runs/{run.name}"))["lines"]
        headers = {"authorization": f"Bearer {page._token}"}
        request = urllib.request.Request(f"{page._base}/api/runs/{run.name}/live", headers=headers)
        with urllib.request.urlopen(request) as news:
            for number in range(count):
                began = time.perf_counter()
                _append(log, number)
                while _lines(news.readline()) <= total + number:
                    pass
                waits.append(time.perf_counter() - began)
    return {"a new line": median(waits)}


def _lines(news: bytes) -> int:
    """How many lines the run has, by a line of the stream of news; 0 where it does not say."""
    return int(json.loads(news[6:])["lines"]) if news.startswith(b"data: ") else 0


def _follow_bare(run: RunFolder, count: int) -> Figures:
    log, waits = paths.rank_log(str(run.path), 0, 0), []
    tail = subprocess.Popen(["tail", "-n", "0", "-F", log], stdout=subprocess.PIPE, text=True)
    assert tail.stdout is not None
    ready = threading.Event()
    threading.Timer(0.5, ready.set).start()  # it says nothing of being there
    ready.wait()
    for number in range(count):
        began = time.perf_counter()
        _append(log, number)
        tail.stdout.readline()
        waits.append(time.perf_counter() - began)
    tail.terminate()
    tail.wait()
    return {"a new line": median(waits)}


def _append(log: str, number: int) -> None:
    with open(log, "a") as file:
        file.write(f"one more {number}\n")


def _cards() -> Figures:
    job = command(command="true", distribution=PyTorchDistribution(process_count_per_instance=8), instance_count=128)
    times: dict[str, list[float]] = {}
    for _ in range(6):
        for name, draw in (
            ("card of a job", job._repr_html_),
            ("explain()", job.explain),
            ("explain() as a table", lambda: job.explain()._repr_html_()),
            ("explain() as text", lambda: str(job.explain())),
        ):
            began = time.perf_counter()
            draw()
            times.setdefault(name, []).append(time.perf_counter() - began)
    return {f"{name}, 1,024 ranks": median(found[1:]) for name, found in times.items()}


def measure(quick: bool) -> Table:
    lines, count = (6_400, 1) if quick else (1_000_000, 5)
    run = _folder(lines)
    total = lines // (_NODES * _PROCESSES) * _NODES * _PROCESSES
    opened = harness.rounds({"jobsdk ui": lambda: _open(run, total), "wc and tail": lambda: _open_bare(run)}, count)
    followed = harness.rounds(
        {"jobsdk ui": lambda: _follow(run, 3 * count), "wc and tail": lambda: _follow_bare(run, 3 * count)}, 1
    )
    rows = harness.by_figure(opened, {"first lines": "s", "memory": "MB"}, f", {total:,} lines of 64 ranks")
    rows += harness.by_figure(followed, {"a new line": "s"}, " is shown after")
    rows += [Row(name, "s", {"jobsdk ui": seconds}) for name, seconds in _cards().items()]
    return Table(
        "Looking at a run",
        "`jobsdk ui` restarts each time. The time is from the request for a run until its state and the last hundred "
        "lines of all ranks' logs, merged in order, are there. The baseline is `wc -l` of all logs and `tail` of one. "
        "For a new line, the time is from the write until the page is notified; the baseline is `tail -F`. Cards are "
        "what a notebook draws.",
        "A run with a million lines opens in well under a second, and new lines appear within a second. No other tool "
        "here has such a view.",
        rows,
    )
