"""What the types of distribution answer to the coordinator and the agent."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk.bootstrap import distributions
from tests.bootstrap.runs import plan

OK, FAILED = {"exit_code": 0}, {"exit_code": 3}


def of(kind: str, nodes: int = 2, **more: Any) -> distributions.Distribution:
    return distributions.of(plan("x", nodes, {"type": kind, "processes": 2, "launcher": "direct", **more}))


def tensorflow(workers: int, servers: int, chief: bool = False) -> distributions.Distribution:
    return of("tensorflow", workers=workers, parameter_servers=servers, chief=chief)


@pytest.mark.parametrize("kind", ["none", "pytorch", "mpi", "deepspeed", "ray", "tensorflow"])
def test_the_registry_has_an_object_for_each_type(kind: str) -> None:
    assert of(kind).kind == kind


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(KeyError):
        of("horovod")


@pytest.mark.parametrize(
    ("one", "ends", "expected"),
    [
        (of("pytorch"), dict.fromkeys(range(4), OK), False),  # ends by itself
        (tensorflow(2, 0), {0: OK, 1: OK}, False),
        (tensorflow(2, 2), {0: OK}, False),
        (tensorflow(2, 2), {0: OK, 2: OK}, True),  # rank 1 is node 0's server
        (tensorflow(2, 2), {0: OK, 2: FAILED}, False),
        (tensorflow(2, 2, chief=True), {0: OK}, True),
        (of("ray"), {}, False),
        (of("ray"), {0: OK}, True),
        (of("ray"), {0: FAILED}, False),
        (of("ray", address="10.0.0.1:6379"), {0: OK}, False),  # no cluster of the job's own to stop
    ],
)
def test_when_the_others_are_stopped(one: distributions.Distribution, ends: dict[int, Any], expected: bool) -> None:
    assert one.is_done(ends) is expected


@pytest.mark.parametrize(
    ("one", "expected"),
    [(of("pytorch"), 2), (of("mpi"), 4), (of("mpi", launcher="mpirun"), 8), (of("mpi", 1, launcher="mpirun"), 3)],
)
def test_how_many_join_the_control_port(one: distributions.Distribution, expected: int) -> None:
    assert one.members() == expected


def test_tasks_of_tensorflow_have_a_port_each() -> None:
    assert [tensorflow(2, 1, chief=True).ports(node) for node in (0, 1)] == [3, 1]
    assert (of("pytorch").ports(0), of("ray").ports(1)) == (1, 4)


def test_only_mpirun_gets_half_the_grace_time_to_end_with_its_ranks() -> None:
    grace_s = of("mpi").plan["grace_s"]
    assert of("mpi").spares_launcher(grace_s * 0.6)
    assert not of("mpi").spares_launcher(grace_s * 0.4)
    assert not of("deepspeed").spares_launcher(grace_s)
