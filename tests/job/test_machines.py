"""The catalogue of machines."""

from __future__ import annotations

import re
from datetime import date

import pytest

from jobsdk.job import machines
from jobsdk.job.machines import Machine


def find(name: str) -> Machine:
    found = machines.known().find(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["Standard_NC24rs_v3", "standard_nc24rs_V3", "NC24rs_v3", "nc24rs_v3"])
def test_names_are_compared_without_case_and_prefix(name: str) -> None:
    assert find(name).name == "Standard_NC24rs_v3"


def test_what_is_known_of_infiniband() -> None:
    assert find("NC24rs_v3").has_infiniband
    assert not find("NC24s_v3").has_infiniband
    without_sriov = find("NC24r")
    assert (without_sriov.infiniband > 0, without_sriov.sriov, without_sriov.has_infiniband) == (True, False, False)
    assert find("ND96isr_H100_v5").infiniband == 3200
    assert all(find(name).has_infiniband for name in ("HB120rs_v3", "HC44rs", "ND96isr_H200_v5", "ND96isr_MI300X_v5"))


def test_every_row_says_where_it_is_from_and_when() -> None:
    for machine in machines.known():
        assert date.fromisoformat(machine.date) < date.today()
        assert machine.source
        assert re.fullmatch(r"Standard_\w+(-\d+\w+)?", machine.name)
        assert machine.cpus > 0
        assert machine.memory > 0
        assert (machine.gpus > 0) == bool(machine.gpu) == (machine.gpu_memory > 0)
        assert machine.gpus or machine.infiniband, "neither GPUs nor InfiniBand"


@pytest.mark.parametrize(
    ("name", "sibling"),
    [
        ("NC24s_v3", "Standard_NC24rs_v3"),
        ("NC6s_v3", "Standard_NC24rs_v3"),
        ("NC96ads_A100_v4", "Standard_ND96amsr_A100_v4"),
        ("NC40ads_H100_v5", "Standard_ND96isr_H100_v5"),
        ("NC64as_T4_v3", None),
        ("NC24r", None),
    ],
)
def test_the_sibling_with_infiniband(name: str, sibling: str | None) -> None:
    found = machines.known().sibling(find(name))
    assert (found and found.name) == sibling


def test_what_is_wrong_in_a_sites_own() -> None:
    own = {
        "good": {"gpus": 8, "gpu": "A100", "infiniband": 200.5, "sriov": True, "date": date(2026, 1, 1)},
        "a": {"gpus": 1.5, "sriov": "yes", "memory": -1, "infiband": 3},
        "b": 8,
    }
    assert list(machines.mistakes(own)) == [
        "machines.a.gpus must be a number, at least 0",
        "machines.a.sriov must be true or false",
        "machines.a.memory must be a number, at least 0",
        "machines.a has no field 'infiband': did you mean 'infiniband'?",
        "machines.b must be a mapping, as in b: {gpus: 8, gpu: A100, infiniband: 1600}",
    ]


def test_a_machine_in_words() -> None:
    assert find("ND96asr_v4").describe() == "8 x A100 40 GiB, 96 cores, InfiniBand 1600 Gbit/s"
    assert find("NC24r").describe() == "4 x K80 12 GiB, 24 cores, InfiniBand 56 Gbit/s without SR-IOV"
    assert Machine("x").describe() == "no GPU, no InfiniBand"
