"""A node of Slurm knows itself from SLURM_* alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobsdk.bootstrap.detect import registry, slurm
from jobsdk.bootstrap.detect.place import NodeIdentity, NotDetected
from tests import engines
from tests.needs import needs

STEP = {
    "SLURM_JOB_ID": "4711", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[001-003]",
    "SLURM_STEP_NODELIST": "gpu[002-003]", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.2",
}  # fmt: skip

LISTS = {
    "gpu[001-003,07],login": ["gpu001", "gpu002", "gpu003", "gpu07", "login"],
    "n[08-11]": ["n08", "n09", "n10", "n11"],
    "n[9-11]": ["n9", "n10", "n11"],
    "n[1-03]": ["n1", "n2", "n3"],
    "a[1-2]b[3-4]": ["a1b3", "a1b4", "a2b3", "a2b4"],
    "r[1-2]-[01-02]": ["r1-01", "r1-02", "r2-01", "r2-02"],
    "n[1-2],n[1-2]": ["n1", "n2", "n1", "n2"],
    "[1-2]": ["1", "2"],
    "a-1,b_2,c": ["a-1", "b_2", "c"],
    "one": ["one"],
}


@pytest.mark.parametrize("text", LISTS)
def test_lists_of_nodes(text: str) -> None:
    assert slurm.expand(text) == LISTS[text]


def test_what_follows_brackets_is_kept() -> None:
    assert slurm.expand("n[1,3].cluster,x") == ["n1.cluster", "n3.cluster", "x"]
    assert slurm.expand("") == []


@pytest.mark.parametrize("text", ["n[1-2", "n]1", "n[]", "n[2-1]", "n[a-b]", "n[1--2]", "n[[1]]", "n[1-2-3]"])
def test_what_is_no_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is no "):
        slurm.expand(text)


_NUMBERS = st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)).map(
    lambda one: f"{one[0]:0{one[2]}}-{one[0] + one[1]}" if one[1] else f"{one[0]:0{one[2]}}"
)
_BRACKETS = st.lists(_NUMBERS, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
_NAMES = st.from_regex(r"[a-z][a-z-]{0,3}[a-z]", fullmatch=True)
_PARTS = st.tuples(_NAMES, st.lists(st.tuples(_BRACKETS, _NAMES), max_size=2)).map(
    lambda one: one[0] + "".join(brackets + name for brackets, name in one[1]).rstrip("abcdefghijklmnopqrstuvwxyz-")
)
_LISTS = st.lists(_PARTS, min_size=1, max_size=3).map(",".join)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """`scontrol show hostnames`, which wants a configuration but no cluster."""
    needs("slurm")
    program, file = str(engines.find("scontrol")), tmp_path_factory.mktemp("slurm") / "slurm.conf"
    file.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")

    def expand(text: str) -> list[str]:
        argv, environ = [program, "show", "hostnames", text], {**os.environ, "SLURM_CONF": str(file)}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout.split()

    return expand


@pytest.mark.engine("slurm")
@settings(max_examples=60, deadline=None)
@given(text=_LISTS)
def test_as_slurm_itself_expands_them(text: str, scontrol: Callable[[str], list[str]]) -> None:
    assert slurm.expand(text) == scontrol(text)


def test_a_step_knows_its_place() -> None:
    ports = slurm.ports(4711)
    assert registry.detect(STEP) == NodeIdentity(1, ["gpu002", "10.0.0.2"], ports, ["gpu002", "gpu003"], judges=True)
    again = {**STEP, "SLURM_RESTART_COUNT": "2", "JOBSDK_REQUEUES": "1", "SLURM_NODEID": "0"}
    place = registry.detect(again)
    assert (place.rank, place.starts, place.returns) == (0, 2, True)


def test_explicit_variables_come_first() -> None:
    given = {**STEP, "JOBSDK_NODE_RANK": "5", "JOBSDK_CONTROL": "a 7000"}
    assert registry.detect(given) == NodeIdentity(5, ["a"], [7000])


def test_without_a_step_the_nodes_are_those_of_the_job() -> None:
    alone = {"SLURM_JOB_ID": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n7"}
    assert registry.detect(alone).addresses == ["n7"]


@pytest.mark.parametrize(
    "wrong",
    [{"SLURM_NODEID": "2"}, {"SLURM_NODEID": "x"}, {"SLURM_STEP_NODELIST": "n[1"}, {"SLURM_RESTART_COUNT": "x"}],
)
def test_half_told_is_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(NotDetected, match=r"SLURM_NODEID|Slurm's variables"):
        registry.detect({**STEP, **wrong})


def test_two_jobs_on_a_node_have_other_ports() -> None:
    taken = [port for job in range(3000) for port in slurm.ports(job)]
    assert len(set(taken)) == len(taken)
    assert min(taken) > 15000
    assert max(taken) < 32768, "above it the kernel gives ports to outgoing connections"
