"""Outputs in object stores: copied there when the ranks have ended, and each checkpoint when it is whole.

Ranks write to the node's own disk. Of the nodes that share a run's folder the first one copies; node 0 to the URL
itself, another one, which has a folder of its own, to `URL/node-K`.
"""

from __future__ import annotations

import glob
import json
import os
import time
from typing import TYPE_CHECKING, Callable, List, Optional, Set

from .. import distributions
from ..control.loop import Loop
from ..hangs.watch import Whereabouts
from ..spec import paths, secrets, stores
from ..system import processes
from . import fetching
from .membership import Membership

if TYPE_CHECKING:
    from ..spec.messages import Uploaded
    from ..spec.store_messages import Request, Said

_LOOK_EVERY_S = 2.0
#: Where `jobsdk.train` notes which ranks have put their part into a checkpoint: in the output, or in a folder of it.
_PARTS = ("checkpoints/.parts/*", "*/checkpoints/.parts/*")


class NodeUploads:
    """Of one node, for all attempts."""

    def __init__(self, member: Membership, whereabouts: Whereabouts) -> None:
        self._member = member
        self._plan = member.plan
        self._run_dir = member.node.run_dir
        self._whereabouts = whereabouts
        self._names = [name for name, given in self._plan["outputs"].items() if stores.is_moved(given)]
        self._waiting: List[Uploaded] = []
        self._runs = self._is_begun = False
        self._seen: Set[str] = set()  # checkpoints that are uploaded, or wait for it
        self._notes = self._run_dir + "/outputs/.uploads"

    def begin(self) -> None:
        """This node has joined. Note that it sees the folder, and look for checkpoints."""
        if not self._names or self._is_begun:
            return
        self._is_begun = True
        os.makedirs(self._notes, exist_ok=True)
        with open("%s/node-%d" % (self._notes, self._member.node.rank), "w"):
            pass
        self._member.loop.every(_LOOK_EVERY_S, self._look)

    def finish(self) -> None:
        """The ranks of all nodes have ended: upload what is new, and tell node 0."""
        names = self._names if self._leader() == self._member.node.rank else []
        if not names:
            self._member.send({"type": "uploaded", "last": True})
        for name in names:
            self._waiting.append({"type": "uploaded", "name": name, "last": name == names[-1]})
        self._next()

    # -- who uploads what ----------------------------------------------------------------------------------------

    def _sharers(self) -> List[int]:
        """The nodes that see this run's folder."""
        names = os.listdir(self._notes) if os.path.isdir(self._notes) else []
        return sorted(int(name[len("node-") :]) for name in names if name.startswith("node-"))

    def _leader(self) -> Optional[int]:
        return next(iter(self._sharers()), None)

    def _look(self) -> None:
        """Upload the checkpoints that have become whole."""
        if self._leader() != self._member.node.rank:
            return
        kind = distributions.of(self._plan)
        ranks = {one.rank for node in self._sharers() for one in kind.node_processes(node)}
        for name in self._names:
            top = paths.output_path(self._plan, name, self._run_dir)
            for parts in [path for pattern in _PARTS for path in glob.glob("%s/%s" % (glob.escape(top), pattern))]:
                there = {"%s/rank-%d.json" % (parts, rank) for rank in ranks}
                if all(map(os.path.exists, there)) and parts not in self._seen:
                    self._seen.add(parts)
                    self._waiting.append({"type": "uploaded", "name": name, "checkpoint": os.path.relpath(parts, top)})
        self._next()

    # -- one after the other -------------------------------------------------------------------------------------

    def _next(self) -> None:
        if self._runs or not self._waiting:
            return
        self._runs = True
        message, began = self._waiting.pop(0), time.monotonic()

        def ended(said: Said) -> None:
            self._runs = False
            moved = said.get("done", {})
            message["files"], message["bytes"] = moved.get("files", 0), moved.get("bytes", 0)
            message["seconds"] = round(time.monotonic() - began, 3)
            message["url"] = self._redact(self._target(message["name"]))
            if "error" in said:
                message["error"] = "output %s: %s" % (message["name"], self._redact(said["error"]))
            self._member.send(message)
            self._next()

        environment = fetching.environment(self._plan, self._run_dir)
        try:
            pid = _start(self._member.loop, environment, self._request(message), ended)
        except OSError as error:
            ended({"error": "the program that uploads it cannot be started: %s" % error})
            return
        self._whereabouts.spare(pid)

    def _request(self, message: Uploaded) -> Request:
        name = message["name"]
        request: Request = {
            "operation": "upload",
            "url": self._target(name),
            "path": paths.output_path(self._plan, name, self._run_dir),
            "is_file": self._plan["outputs"][name]["type"] == "uri_file",
            "state": "%s/%s.json" % (self._notes, name),
            "mark": {"run": self._plan["run"], "node": self._member.node.rank},
        }
        if "checkpoint" in message:
            parts = message["checkpoint"]
            request["below"], request["mark"] = [parts.replace(".parts/", ""), parts], None
        return request

    def _target(self, name: str) -> str:
        given, node = self._plan["outputs"][name], self._member.node.rank
        uri = str(given["uri"]).rstrip("/")
        if not node:
            return uri
        return "%s%snode-%d" % (uri, "." if given["type"] == "uri_file" else "/", node)

    def _redact(self, text: str) -> str:
        return secrets.redactor(self._plan, fetching.environment(self._plan, self._run_dir)).text(text)


def _start(loop: Loop, environment: fetching.Environment, request: Request, ended: Callable[[Said], None]) -> int:
    """Start the program; `ended` gets its last word."""
    (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
    try:
        argv = fetching.argv(environment)
        pid = processes.start_piped(argv, environment, [theirs_in, theirs_out, theirs_out])
    except OSError:
        os.close(ours_in)
        os.close(ours_out)
        raise
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    os.write(ours_in, json.dumps(request).encode() + b"\n")
    heard = bytearray()

    def hear() -> None:
        data = os.read(ours_out, 1 << 16)
        heard.extend(data)
        if data:
            return
        loop.forget(ours_out)
        os.close(ours_out)
        os.close(ours_in)
        ended(fetching.last_word(heard.decode(errors="replace").splitlines()))

    loop.on_readable(ours_out, hear)
    return pid
