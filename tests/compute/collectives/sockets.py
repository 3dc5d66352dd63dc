"""An all-reduce that needs only sockets: the ranks meet at MASTER_ADDR and MASTER_PORT, and add up around a ring."""

import json
import os
import socket
import time

from part import say, show_environment

show_environment()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
deadline = time.monotonic() + 100


def connected(address):
    """A connection to a rank, which may still be starting."""
    while True:
        try:
            return socket.create_connection(address, timeout=100)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if rank == 0:
    meeting = socket.create_server(master, backlog=size)
    mine = socket.create_server((meeting.getsockname()[0], 0))
    lines = [meeting.accept()[0].makefile("rw") for _ in range(size - 1)]
    places = dict([json.loads(line.readline()) for line in lines], **{"0": mine.getsockname()})
    for line in lines:
        print(json.dumps(places), file=line, flush=True)
else:
    with connected(master) as to_master, to_master.makefile("rw") as line:
        mine = socket.create_server((to_master.getsockname()[0], 0))  # the address by which others reach this node
        print(json.dumps([str(rank), mine.getsockname()]), file=line, flush=True)
        places = json.loads(line.readline())
assert sorted(map(int, places)) == list(range(size)), places
right = connected(tuple(places[str((rank + 1) % size)])).makefile("w")
left = mine.accept()[0].makefile("r")
total = passed = rank + 1
for _ in range(size - 1):
    print(passed, file=right, flush=True)
    passed = int(left.readline())
    total += passed
say(total)
