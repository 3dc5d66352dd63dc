"""Node 0's coordinator alone, in RUN_DIR, for a job of NODES simulated nodes; see control_members.

Its plan comes from the product. Writes "port P" when it listens, "quiet" when QUIET_S seconds without an event have
passed, and at the end its figures as JSON: its share of one core in that time, its processor seconds in all, and the
bytes that it wrote.
"""

import json
import os
import socket
import sys
import time

from jobsdk import PyTorchDistribution, command
from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.coordinator.coordinator import Coordinator, Settings
from jobsdk.planning.plan import make_plan

nodes, run_dir, quiet_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
job = command(command="true", distribution=PyTorchDistribution(process_count_per_instance=1), instance_count=nodes)
plan = json.loads(json.dumps(make_plan(job, name="example")))
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
listener.setblocking(False)
loop, marks = Loop(), {}


def mark(name):
    marks[name] = (time.monotonic(), time.process_time())
    if name == "quiet end":
        print("quiet", flush=True)


def look():
    """When the ranks' starts have been noted, the job is quiet: what it costs then is measured."""
    if "started" not in marks and len(coordinator.attempt.places) == nodes:
        marks["started"] = None
        loop.later(2.0, lambda: mark("quiet"))
        loop.later(2.0 + quiet_s, lambda: mark("quiet end"))
    if "quiet end" not in marks:
        loop.later(0.05, look)


def ended(code):
    began, since = marks["quiet"], marks["quiet end"]
    sizes = {name: os.path.getsize(os.path.join(run_dir, name)) for name in ("events.jsonl", "report.json")}
    figures = {
        "code": code,
        "idle CPU": (since[1] - began[1]) / (since[0] - began[0]),
        "CPU in all": time.process_time() - marks["begun"][1],
        "events": sizes["events.jsonl"],
        "report": sizes["report.json"],
    }
    print(json.dumps(figures), flush=True)
    loop.stop()


mark("begun")
coordinator = Coordinator(loop, plan, listener, Settings(run_dir, b"token"), ended)
print("port", listener.getsockname()[1], flush=True)
look()
loop.run()
