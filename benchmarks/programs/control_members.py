"""COUNT simulated nodes from FIRST on in one process, as members of the control port PORT.

Each joins, says that its rank has started when node 0 starts the job, says every three seconds that it is alive, and
stops when node 0 says so. The line "fail" on stdin has the first of them fail. Writes, with the time of its monotonic
clock, "joined T", "started T", "failed T", "stopped T" (when each had happened to all) and "gone T".
"""

import json
import os
import select
import socket
import sys
import time

from jobsdk.bootstrap.control.channel import Handshake, encoded
from jobsdk.bootstrap.control.server import HEARTBEAT_TIMEOUT_S, raise_open_files_limit

first, count, port = (int(word) for word in sys.argv[1:4])
PERIOD_S = HEARTBEAT_TIMEOUT_S / 5
AT_ONCE = 500  # connections that are being opened


class Member:
    """One node: its socket, and how far it is."""

    def __init__(self, number):
        self.number = number
        self.incoming = bytearray()
        self.handshake = Handshake(b"token", "node", number)
        self.take = self.challenge
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.connect_ex(("127.0.0.1", port))
        self.alive_at = 0.0

    def send(self, message):
        self.sock.setblocking(True)
        self.sock.sendall(encoded(message))
        self.sock.setblocking(False)

    def challenge(self, message):
        self.send(self.handshake.answer(message))
        self.take = self.welcome

    def welcome(self, message):
        assert self.handshake.accepts(message)
        self.send({"type": "join", "host": f"host-{self.number}", "pid": 1000 + self.number, "gpus": None,
                   "ports": [29500, 29501], "cores": 8, "infiniband": None})  # fmt: skip
        self.take = self.started
        self.alive_at = time.monotonic() + PERIOD_S * (self.number % 100) / 100
        note("joined")

    def started(self, message):
        if message["type"] == "start":
            self.say("rank_started", pid=2000 + self.number)
            self.take = self.running
            note("started")

    def running(self, message):
        if message["type"] == "stop":
            if self.number != failing:
                self.say("rank_ended", exit_code=-15, signal=15, stopped=True)
            self.send({"type": "quiet", "shells": 0, "restart": 0})
            self.take = self.stopping
            note("stopped")

    def stopping(self, message):
        if message["type"] == "finish":
            watched.unregister(self.sock)
            self.sock.close()
            note("gone")

    def say(self, kind, **facts):
        self.send({"type": kind, "t": time.time(), "node": self.number, "rank": self.number, "restart": 0, **facts})

    def read(self):
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            sys.exit(f"node 0 closed the connection of node {self.number}")
        self.incoming += data
        while len(self.incoming) >= 4:
            size = int.from_bytes(self.incoming[:4], "big")
            if len(self.incoming) < 4 + size:
                return
            body = bytes(self.incoming[4 : 4 + size])
            del self.incoming[: 4 + size]
            if not body.startswith(b'{"type":"alive"'):
                # Of the order to start, which every real node reads by itself, only the kind counts here.
                self.take({"type": "start"} if body.startswith(b'{"type":"start"') else json.loads(body))


def note(what):
    reached[what] = reached.get(what, 0) + 1
    if reached[what] == count:
        print(what, time.monotonic(), flush=True)


raise_open_files_limit(count + 64)
reached, failing = {}, -1
members, watched = {}, select.epoll()
watched.register(sys.stdin, select.EPOLLIN)
numbers = iter(range(first, first + count))
beats_at = 0.0
while reached.get("gone", 0) < count:
    while len(members) < count and len(members) - reached.get("joined", 0) < AT_ONCE:
        one = Member(next(numbers))
        members[one.sock.fileno()] = one
        watched.register(one.sock, select.EPOLLIN)
    for descriptor, _ in watched.poll(0.02):
        if descriptor == sys.stdin.fileno():
            if not os.read(descriptor, 100):
                sys.exit("the benchmark has ended")
            failing = first
            print("failed", time.monotonic(), flush=True)
            failed = next(one for one in members.values() if one.number == failing)
            failed.say("rank_ended", exit_code=3, signal=None, stopped=False)
        else:
            members[descriptor].read()
    now = time.monotonic()
    if now >= beats_at:
        beats_at = now + 0.02
        for one in members.values():
            if one.alive_at and one.alive_at <= now and one.take != one.stopping:
                one.alive_at = now + PERIOD_S
                one.send({"type": "alive", "asked": now})
