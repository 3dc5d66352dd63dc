from __future__ import annotations

import pytest

from jobsdk.bootstrap.detect import place as place_
from jobsdk.bootstrap.detect import registry
from jobsdk.bootstrap.detect.place import NodeIdentity


@pytest.mark.parametrize(
    ("control", "place"),
    [
        ("fd00::1 7000", NodeIdentity(2, ["fd00::1"], [7000])),
        ("[fd00::1] 7000", NodeIdentity(2, ["fd00::1"], [7000])),
        ("gpu-a,10.0.0.4 7000,7001", NodeIdentity(2, ["gpu-a", "10.0.0.4"], [7000, 7001])),
    ],
)
def test_explicit_variables(control: str, place: NodeIdentity) -> None:
    assert registry.detect({"JOBSDK_NODE_RANK": "2", "JOBSDK_CONTROL": control}) == place


@pytest.mark.parametrize(("text", "hosts"), [("a,b, c", ["a", "b", "c"]), ("a,,c", ["a", "", "c"]), ("", None)])
def test_hosts_may_be_named_in_the_order_of_the_nodes(text: str, hosts: list[str] | None) -> None:
    environment = {"JOBSDK_NODE_RANK": "0", "JOBSDK_CONTROL": "a 1", "JOBSDK_HOSTS": text}
    assert registry.detect(environment).hosts == hosts


@pytest.mark.parametrize(
    "environment",
    [
        {"JOBSDK_NODE_RANK": "1"},
        {"JOBSDK_NODE_RANK": "x", "JOBSDK_CONTROL": "a 1"},
        {"JOBSDK_NODE_RANK": "-1", "JOBSDK_CONTROL": "a 1"},
        *({"JOBSDK_NODE_RANK": "1", "JOBSDK_CONTROL": text} for text in ("a", "a 1 2", "a x", "a 0", "a 70000", ", 1")),
    ],
)
def test_half_told_is_an_error_that_says_what_is_needed(environment: dict[str, str]) -> None:
    with pytest.raises(place_.NotDetected, match="JOBSDK_CONTROL"):
        registry.detect(environment)


def test_no_known_place_is_an_error() -> None:
    with pytest.raises(place_.NotDetected, match="set JOBSDK_NODE_RANK and JOBSDK_CONTROL"):
        registry.detect({})
