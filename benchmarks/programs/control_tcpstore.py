"""torch's TCPStore with COUNT clients, in this process and two others: writes the seconds until all have joined, and
until all know of a failure, as JSON.

Each client looks up the name of the server's address. Where that takes long, as on a machine without a name service, it
is all that joining shows, and is left out.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time

from torch.distributed import TCPStore

COUNT = int(sys.argv[1])
_CLIENTS = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from torch.distributed import TCPStore
port, count = int(sys.argv[1]), int(sys.argv[2])

def join(_):
    store = TCPStore("localhost", port, is_master=False, wait_for_workers=False)
    store.add("joined", 1)
    return store

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(200) as pool:  # a client waits for the answer of the server, which others may use
    stores = list(pool.map(join, range(count)))
    print("joined", time.monotonic(), flush=True)
    sys.stdin.readline()
    list(pool.map(lambda store: store.wait(["failed"]), stores))  # each asks, as torchrun's agents do
    print("known", time.monotonic(), flush=True)
sys.stdin.readline()
"""


def names_are_quick():
    began = time.monotonic()
    with contextlib.suppress(OSError):
        socket.getnameinfo(("::1", 0), socket.NI_NAMEREQD)
    return time.monotonic() - began < 0.01


server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
clients = [
    subprocess.Popen(
        [sys.executable, "-c", _CLIENTS, str(server.port), str(COUNT // 2)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    for _ in range(2)
]  # fmt: skip


def tell():
    for one in clients:
        one.stdin.write("\n")
        one.stdin.flush()


def last():
    return max(float(one.stdout.readline().split()[1]) for one in clients)


for one in clients:
    one.stdout.readline()
began = time.monotonic()
tell()
joined = last()
server.set("failed", "node 1")
failed = time.monotonic()
tell()
known = last()
tell()
for one in clients:
    one.communicate()
figures = {"all joined": joined - began} if names_are_quick() else {}
print(json.dumps({**figures, "failure known to all": known - failed}))
