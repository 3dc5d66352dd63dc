"""All-reduce between nodes as torch does it: one process on each node, run by the job's own Python.

`Reduction` starts that process and hears what it measured; `run` is the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, NoReturn, Optional

from ..control.loop import Loop

if TYPE_CHECKING:
    from ..spec.preflight_messages import AllReduce

#: Seconds until all have imported torch, met and measured.
PATIENCE_S = 60.0
_MEET_S = 30.0  # of those, until all have met
#: A size is measured until it takes so many seconds; the next one is twice as large.
_LONG, _MOST = 0.1, 256 << 20
_FIRST = 1 << 20
_BUDGET_S = 1.0  # seconds for all sizes


class Reduction:
    """This node's process; `done` gets what it says: {"gbps", "bytes"} on node 0, {} on others, or {"error"}."""

    def __init__(
        self,
        loop: Loop,
        python: str,
        environment: Mapping[str, str],
        backend: str,
        port: int,
        done: Callable[[AllReduce], None],
    ) -> None:
        import subprocess

        self._loop = loop
        self._done = done
        self._said = b""
        node, count = environment["NODE_RANK"], environment["NODE_COUNT"]
        own = {"RANK": node, "WORLD_SIZE": count, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": str(port)}
        self._process = subprocess.Popen(
            [python, os.path.abspath(sys.argv[0]), "allreduce", backend], env={**environment, **own},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._late = loop.later(PATIENCE_S, self._too_late)
        loop.on_readable(self._output, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._output, 1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        self._said += data
        if not data:
            code = self._process.wait()
            self._end({"error": "its process ended with code %d" % code} if code else self._last())

    def _last(self) -> AllReduce:
        """The last line that it wrote."""
        try:
            said: AllReduce = json.loads(self._said.splitlines()[-1])
            return said
        except (IndexError, ValueError):
            return {"error": "it said nothing"}

    def _too_late(self) -> None:
        self._process.kill()
        self._process.wait()
        self._end({"error": "it was not through after %.0f s" % PATIENCE_S})

    def _end(self, said: AllReduce) -> None:
        self._late.cancel()
        self._loop.forget(self._output)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._done(said)


def run(backend: str) -> NoReturn:
    """Measure with `backend`; the last line of stdout is the result as JSON."""
    try:
        said = _measured(backend)
    except Exception as error:  # torch raises all kinds
        said = {"error": str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__}
    print(json.dumps(said), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a destructor of a process group may wait for nodes that are lost


def _measured(backend: str) -> AllReduce:
    import datetime

    import torch
    import torch.distributed as dist

    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=_MEET_S))
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    best: AllReduce = {"gbps": 0.0, "bytes": 0}
    began, size = time.monotonic(), _FIRST
    while True:
        data = torch.ones(size // 4, dtype=torch.float32, device=device)
        if size == _FIRST:
            dist.all_reduce(data)  # makes the connections
        seconds = _timed(torch, dist, data, device)
        rate = 2 * (count - 1) / count * size * 8e-9 / seconds  # bus bandwidth, as nccl-tests define it
        if rate > best["gbps"]:
            best = {"gbps": rate, "bytes": size}
        # Node 0 says for all whether to go on.
        on = torch.tensor(
            [float(seconds < _LONG and size < _MOST and time.monotonic() - began < _BUDGET_S)], device=device
        )
        dist.broadcast(on, 0)
        if not on.item():
            return best if rank == 0 else {}
        size *= 2


def _timed(torch: Any, dist: Any, data: Any, device: Any) -> float:
    """Seconds of one all-reduce on the slowest node."""
    dist.barrier()
    began = time.monotonic()
    dist.all_reduce(data)
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = torch.tensor([time.monotonic() - began], device=device)
    dist.all_reduce(spent, op=dist.ReduceOp.MAX)
    return max(float(spent.item()), 1e-6)


def backend_for(facts: Mapping[int, Mapping[str, Any]]) -> Optional[str]:
    """What torch would use between nodes of which `facts` are known; None where not all have torch."""
    if not all("torch" in (of.get("packages") or {}) for of in facts.values()):
        return None
    gpus = all(of.get("visible_gpus") and of["packages"].get("cuda", "none") != "none" for of in facts.values())
    return "nccl" if gpus else "gloo"
