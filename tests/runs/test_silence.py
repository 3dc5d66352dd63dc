from __future__ import annotations

import os

import pytest

from jobsdk.bootstrap.spec import paths
from jobsdk.job.command import CommandJob
from jobsdk.planning.plan import make_plan
from jobsdk.runs import silence
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.ranks import Ranks

NOW = 1_800_000_000.0


def made(name: str, **native: str) -> RunFolder:
    """A run of 4 ranks, of which the last has ended."""
    run = RunFolder.create(name)
    distribution = {"type": "pytorch", "process_count_per_instance": 4}
    run.write_json("plan.json", make_plan(CommandJob(command="true", distribution=distribution), name=name))
    run.write_json("native.json", native)
    run.append_event("submitted", by=1)
    run.append_event("started", master_addr="h", master_port=1, restart=0)
    for rank in range(4):
        run.append_event("rank_started", node=0, rank=rank, pid=rank + 1)
    run.append_event("rank_ended", node=0, rank=3, exit_code=0, signal=None)
    os.makedirs(paths.node_logs(str(run.path), 0))
    return run


def write(run: RunFolder, rank: int, age: float, text: str = "x\n") -> None:
    log = paths.rank_log(str(run.path), 0, rank)
    with open(log, "w") as file:
        file.write(text)
    os.utime(log, (NOW - age, NOW - age))


def outputs(run: RunFolder) -> dict[int, float]:
    ranks = Ranks(run.plan())
    ranks.feed(run.events())
    return {rank: NOW - when for rank, when in silence.last_outputs(run, ranks.states(), 0).items()}


def test_of_a_local_run_the_logs_themselves_say_when() -> None:
    run = made("here", type="local")
    write(run, 0, 5)
    write(run, 1, 140)
    write(run, 2, 0, "")
    write(run, 3, 1)
    assert outputs(run) == {0: 5, 1: 140}
    assert silence.of_run(run, NOW) == "5 s ago; rank 1: 0:02:20 ago"


def test_of_a_run_elsewhere_its_nodes_say_when() -> None:
    run = made("there", type="slurm")
    write(run, 0, 5)
    with open(paths.times(str(run.path), 0, 0), "w") as file:
        file.write(f"{NOW - 90:.3f} 10\n{NOW - 70:.3f} 20\n{NOW - 65:.3f}")
    assert outputs(run) == {0: pytest.approx(70)}


def test_nothing_is_said_of_a_run_that_has_ended_or_written_nothing() -> None:
    run = made("ended", type="local")
    assert silence.of_run(run, NOW) is None
    write(run, 0, 5)
    assert silence.of_run(run, NOW) == "5 s ago"
    run.append_event("ended", status="Completed", exit_code=0, message="")
    assert silence.of_run(run, NOW) is None


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ([], None),
        ([0, 1, 59], "0 s ago"),
        ([2, 70, 71, 72], "2 s ago; ranks 1-3: 0:01:12 ago"),
        ([4000, 4001], "1:06:40 ago"),
    ],
)
def test_only_ranks_that_are_silent_for_much_longer_are_named(ages: list[float], expected: str | None) -> None:
    assert silence.text({rank: NOW - age for rank, age in enumerate(ages)}, NOW) == expected
