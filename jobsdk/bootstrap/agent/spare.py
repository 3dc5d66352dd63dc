"""A spare node: it starts nothing, and waits until node 0 gives it the place of a node that was lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Optional

from ..control.channel import Message
from ..control.client import ControlClient
from ..control.loop import Loop
from ..control.server import HEARTBEAT_TIMEOUT_S

if TYPE_CHECKING:
    from ..detect.place import NodeIdentity
    from ..spec.plan import Plan


def wait(plan: Plan, place: NodeIdentity, token: bytes) -> Optional[int]:
    """The number of the node whose place this one takes; None when the job has ended without a need for it."""
    loop = Loop()
    taken: Optional[int] = None

    def heard(message: Message) -> None:
        nonlocal taken
        if message["type"] == "take":
            taken = message["node"]
        if message["type"] in ("take", "finish"):
            loop.stop()

    def say(text: str) -> None:
        sys.stderr.write("bootstrap: spare node: %s\n" % text)

    def lost(why: str) -> None:
        say(why)
        loop.stop()

    client = ControlClient(
        loop, place.addresses, place.ports, token, "spare", place.rank, plan["rendezvous_timeout_s"],
        lambda: client.send({"type": "spare"}), heard, lost, say, plan.get("heartbeat_s", HEARTBEAT_TIMEOUT_S),
    )  # fmt: skip
    loop.run()
    client.close()
    loop.close()
    return taken
