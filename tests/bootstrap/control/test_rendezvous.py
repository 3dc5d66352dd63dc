"""Waiting for nodes: who is missing is said, with what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobsdk.bootstrap.control import rendezvous
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.control.rendezvous import Rendezvous


class Wait:
    """A rendezvous of some nodes that lasts until it has failed or is complete, and what it said."""

    def __init__(self, count: int, hosts: dict[int, str], timeout: float) -> None:
        self.loop = Loop()
        self.told: list[str] = []
        self.outcome: Any = None
        self.rendezvous = Rendezvous(
            self.loop, count, hosts, timeout, lambda text, missing: self.told.append(text),
            lambda: self._end("complete"), lambda text, missing: self._end((text, missing)),
        )  # fmt: skip

    def _end(self, outcome: Any) -> None:
        self.outcome = outcome
        self.loop.stop()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_TELL_EVERY_S", 0.05)


def test_missing_nodes_are_named_with_their_hosts_while_waiting_and_at_the_end() -> None:
    wait = Wait(4, {2: "host-c"}, 120.0)
    for node in (0, 1):
        wait.rendezvous.ready(node, {"ports": [1]})
    while len(wait.told) < 2:  # again and again
        wait.loop.later(0.01, wait.loop.stop)
        wait.loop.run()
    assert wait.told[0] == "waiting 2/4, missing: node 2 (host-c), node 3"
    assert wait.outcome is None
    wait = Wait(4, {2: "host-c"}, 0.1)
    for node in (0, 1):
        wait.rendezvous.ready(node, {"ports": [1]})
    wait.loop.run()
    text, missing = wait.outcome
    assert text.startswith("2 of 4 nodes joined within ")
    assert text.endswith("missing: node 2 (host-c), node 3")
    assert missing == [2, 3]


def test_nothing_is_said_once_all_are_there() -> None:
    wait = Wait(2, {}, 0.1)
    for node in (1, 0):
        wait.rendezvous.ready(node, {"ports": [6 + node]})
    wait.loop.later(0.2, wait.loop.stop)  # when both of its times are over
    wait.loop.run()
    assert (wait.outcome, wait.told) == ("complete", [])
    assert wait.rendezvous.each("ports") == [[6], [7]]


def test_a_node_that_goes_is_missing_again() -> None:
    wait = Wait(2, {1: "h"}, 0.1)
    wait.rendezvous.ready(1, {"ports": [7]})
    wait.rendezvous.gone(1)
    wait.rendezvous.ready(0, {"ports": [7]})
    wait.loop.run()
    assert wait.outcome[1] == [1]


def test_of_many_the_first_are_named() -> None:
    wait = Wait(1000, {}, 0.01)
    wait.loop.run()
    assert "node 0, node 1, " in wait.outcome[0]
    assert wait.outcome[0].endswith("node 19 and 980 more")
