"""The entrypoint of a submitted job: drives it on the cluster, and writes what is to be known of it to its log.

It travels as `driver` does. Lines of ours in the log, counted from 1, so that a reader knows what it has missed:

    @7 1 rank-3:0| epoch 1        node 1 has written this record (see `jobsdk.bootstrap.transport.stdout_relay`)
    @8 event {"event": ...}       an event that only Ray knows
    @9 plan {...}                 the plan as the placement has made it
    @10 left 1 0 BASE64           of the tar file of what node 1 has left, the piece at byte 0
    @11 unsent 1                  what node 1 has left was too much
    @12 end {...}                 how it ended, the last line; an `EngineEnd`, or empty where node 0's report says it
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Optional

import ray

from ..ends import LOST, EngineEnd, EngineEnded
from . import driver as ray_driver

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan

ORDER, PARCEL = "order.json", "parcel"
_PIECE = 48 << 10  # bytes of what is left, in one line


def main() -> int:
    client = _Log(sys.stdout.fileno())
    signal.signal(signal.SIGTERM, client.stop)
    with open(ORDER) as file:
        given = json.load(file)
    client.limit = given.pop("outputs_limit")
    files = {}
    for name in os.listdir(PARCEL):
        with open(os.path.join(PARCEL, name), "rb") as content:
            files[name] = content.read()
    # This folder is on PYTHONPATH of all that Ray starts for the job.
    shed = os.path.basename(os.getcwd())
    order = ray_driver.Order(shed=shed, name="jobsdk-" + given["run"], **given)
    end: Optional[EngineEnd] = None
    code: Optional[int] = None
    try:
        ray.init(namespace=ray_driver.NAMESPACE, log_to_driver=False)
        signal.signal(signal.SIGTERM, client.stop)  # Ray has put a handler of its own in its place
        code = ray_driver.drive(order, files, client)
    except EngineEnded as ended:
        end = ended.end
    except Exception as error:
        end = EngineEnd.fault(error)
    client.say("end", json.dumps(end._asdict() if end is not None else {}))
    if end is not None:
        return end.exit_code
    return LOST if code is None else code


class _Log(ray_driver.Client):
    """Writes to the job's log; SIGTERM is a request to cancel."""

    def __init__(self, out: int) -> None:
        self.limit = 0
        self._out = out
        self._count = 0
        self._stops = 0

    def stop(self, *_: object) -> None:
        self._stops += 1

    def say(self, kind: str, text: str) -> None:
        self._write([("%s %s" % (kind, text)).encode()])

    def _write(self, lines: List[bytes]) -> None:
        numbered = []
        for line in lines:
            self._count += 1
            numbered.append(b"@%d %b\n" % (self._count, line))
        data = b"".join(numbered)
        while data:
            data = data[os.write(self._out, data) :]

    def take(self, rank: int, lines: Iterable[bytes]) -> None:
        self._write([b"%d %b" % (rank, line.rstrip(b"\n")) for line in lines])

    def tell(self, event: str, **facts: Any) -> None:
        self.say("event", json.dumps(dict(facts, event=event)))

    def planned(self, plan: Plan) -> None:
        self.say("plan", json.dumps(plan))

    def asked(self) -> List[str]:
        if self._stops == 1:
            self._stops = 2  # once is enough
            return ["cancel"]
        return []

    def leave(self, rank: int, chunks: Iterator[bytes]) -> None:
        kept = []
        for chunk in chunks:
            kept.append(chunk)
            self.limit -= len(chunk)
            if self.limit < 0:
                self.say("unsent", str(rank))
                return
        data = b"".join(kept)
        for start in range(0, len(data), _PIECE):
            piece = base64.b64encode(data[start : start + _PIECE]).decode()
            self.say("left", "%d %d %s" % (rank, start, piece))


if __name__ == "__main__":
    sys.exit(main())
