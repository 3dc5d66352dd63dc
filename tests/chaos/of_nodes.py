"""Faults of nodes: bootstraps, machines, the network between them, the control port."""

from __future__ import annotations

import signal

from tests.chaos import injections as do
from tests.chaos import surroundings as within
from tests.chaos.fault import ANY, CLOCK, FINISH, NETWORK, PATIENT, ROOT, Fault, fails, restarts

_DONE = "as Completed: all 4 ranks ended with code 0$"
_KILL, _STOP, _TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM

#: One rank fails, and then, before it is stopped, another one does on the other node.
_CLOCKS = """
go()
if RANK == {first}:
    raise ValueError("first")
while not os.path.exists(FOLDER + "/second"):
    time.sleep(0.01)
if RANK == {second}:
    raise ValueError("second")
time.sleep(600)
"""

#: All nodes' bootstraps on this machine, under one supervisor.
BOOTSTRAPS = [
    Fault("bootstrap killed", r"as Lost: node 1 \(.+\) is lost: ", "node_lost", "Lost", 125, None, 1,
          inject=do.to_bootstrap(_KILL, 1), card="\nadvice: the machine or its network failed"),
    Fault("bootstrap of node 0 killed", "as Lost: the bootstrap of node 0 was killed by SIGKILL$", "node_lost", "Lost",
          125, None, 0, inject=do.to_bootstrap(_KILL, 0)),
    Fault("both bootstraps killed",
          r"as Lost: (the bootstrap of node [01] was killed by SIGKILL|node 1 .+ is lost: .+)$", "node_lost",
           "Lost", 125, None, ANY, inject=do.to_bootstrap(_KILL, 1, 0)),
    Fault("bootstrap stopped", r"as Lost: node 1 \(.+\) is lost: nothing heard for ", "node_lost", "Lost", 125, None, 1,
          inject=do.to_bootstrap(_STOP, 1), plan={"heartbeat_s": 5.0}),
    Fault("bootstrap of node 0 stopped", "as Lost: the bootstrap of node 0 ", "node_lost", "Lost", 125, None, 0,
          inject=do.to_bootstrap(_STOP, 0), plan={"heartbeat_s": 5.0}),
    Fault("node taken away", r"as Preempted: node 1 \(.+\) got a SIGTERM$", "preempted", "Preempted", 143,
          None, 1, inject=do.to_bootstrap(_TERM, 1), card="\nadvice: max_preemptions restarts"),
    Fault("node 0 taken away", r"as Preempted: node 0 \(.+\) got a SIGTERM$", "preempted", "Preempted",
          143, None, 0, inject=do.to_bootstrap(_TERM, 0)),
    Fault("all nodes taken away", r"as Preempted: node [01] \(.+\) got a SIGTERM$", "preempted",
          "Preempted", 143, None, ANY, inject=do.to_bootstrap(_TERM, 0, 1)),
    Fault("node taken away and given back", _DONE, None, "Completed", 0,
          script="go()\nif RESTART == 0:\n    time.sleep(600)\n", inject=do.to_bootstrap(_TERM, 1),
          plan=restarts(max_preemptions=1), history=["preempted"]),
    Fault("node lost and replaced", _DONE, None, "Completed", 0, script="go()\nif RESTART == 0:\n    time.sleep(600)\n",
          inject=do.to_bootstrap(_KILL, 1), plan=restarts(max=1), history=["node_lost"]),
    Fault("node 0 lost and replaced", _DONE, None, "Completed", 0,
          script="go()\nif RESTART == 0:\n    time.sleep(600)\n", inject=do.to_bootstrap(_KILL, 0),
          plan=restarts(max=1), history=["node_lost"]),
    Fault("supervisor killed", r"as Lost: the (supervisor of this run|run's supervisor) was killed", "node_lost",
          "Lost", 125, None, ANY,
          inject=do.to_supervisor(_KILL), buried=True, process_code=-9),
    Fault("a rank kills its bootstrap", r"as Lost: node 1 \(.+\) is lost: ", "node_lost", "Lost", 125, None, 1,
          script=fails("os.kill(os.getppid(), signal.SIGKILL)")),
    Fault("the whole job is suspended", _DONE, None, "Completed", 0, script=FINISH, inject=do.freeze_for_a_moment,
          plan={"heartbeat_s": 5.0}),
    Fault("working folder gone", r"as Failed: node \d cannot start: .*No such file or directory", "bootstrap_error",
          exit_code=126, node=ANY, around=within.no_working_folder, waits=False),
    Fault("run folder's disk full", r"as Failed: rank 3 on node 1 exited with code 1, and the disk of .+ is full$",
          "disk_full", rank=3, node=1,
          script=fails("""
              with open(os.environ["JOBSDK_RUN_DIR"] + "/outputs/default/checkpoint", "wb", 0) as file:
                  while True:
                      file.write(bytes(1 << 16))
              """), around=within.small_disk("4m", lambda job: job.run_dir), marks=[ROOT]),
    Fault("too few file descriptors", "as Failed: .*Too many open files", "bootstrap_error", exit_code=126, node=ANY,
          around=within.few_files(9), waits=False, script=FINISH),
]  # fmt: skip

#: Each node's bootstrap by itself, as on a cluster.
APART = [
    Fault("two nodes", _DONE, None, "Completed", 0, script=FINISH, apart=True),
    Fault("a rank on another node", "as Failed: rank 3 on node 1 exited with code 1: ValueError: far away$",
          "exception", rank=3, node=1, apart=True, script=fails("raise ValueError('far away')"),
          card="others: ranks 0-2 stopped by jobsdk"),
    Fault("a node's machine dies", r"as Lost: node 1 \(.+\) is lost: ", "node_lost", "Lost", 125, None, 1, apart=True,
          inject=do.to_bootstrap(_KILL, 1)),
    Fault("a node is silent", r"as Lost: node 1 \(.+\) is lost: nothing heard for ", "node_lost", "Lost", 125, None, 1,
          apart=True, around=within.hosts, marks=[NETWORK], inject=do.cut_the_network, plan={"heartbeat_s": 5.0},
          card=r"^run chaos ended as Lost: node 1 \(h1\) "),
    Fault("a node never starts", r"as Lost: 1 of 2 nodes joined within .*; missing: node 1 \(gpu-b\)$", "never_started",
          "Lost", 125, None, 1, apart=True, absent=[1], waits=False, plan={"rendezvous_timeout_s": 4.0},
          environ={"JOBSDK_HOSTS": "gpu-a,gpu-b"}),
    Fault("a node joins late", _DONE, None, "Completed", 0, script=FINISH, apart=True, absent=[1], waits=False,
          inject=do.start_late),
    Fault("a node with another token", r"as Lost: 1 of 2 nodes joined within .*; missing: node 1", "never_started",
          "Lost", 125, None, 1, apart=True, absent=[1], waits=False, plan={"rendezvous_timeout_s": 4.0},
          inject=do.start_with_another_token),
    Fault("a node started twice", _DONE, None, "Completed", 0, script=FINISH, apart=True, inject=do.start_twice),
    Fault("control port taken", r"as Failed: node 0 cannot start: \[Errno 98\] Address already in use: port \d+",
          "bootstrap_error", exit_code=126, node=0, apart=True, around=within.taken_control_port, waits=False,
          plan={"rendezvous_timeout_s": 4.0}),
    Fault("a clock that is an hour ahead", "as Failed: rank 3 on node 1 exited with code 1: ValueError: first$",
          "exception", rank=3, node=1, apart=True, around=within.clock("+1h", 1), marks=[CLOCK],
          script=_CLOCKS.format(first=3, second=0), inject=do.one_after_the_other(3, 0), plan=PATIENT),
    Fault("a clock that is an hour behind", "as Failed: rank 0 on node 0 exited with code 1: ValueError: first$",
          "exception", rank=0, node=0, apart=True, around=within.clock("-1h", 1), marks=[CLOCK],
          script=_CLOCKS.format(first=0, second=3), inject=do.one_after_the_other(0, 3), plan=PATIENT),
    Fault("garbage at the control port", _DONE, None, "Completed", 0, script=FINISH, apart=True, inject=do.garbage),
    Fault("half-open connections", _DONE, None, "Completed", 0, script=FINISH, apart=True, inject=do.half_open),
    Fault("a huge frame is announced", _DONE, None, "Completed", 0, script=FINISH, apart=True, inject=do.huge_frame),
    Fault("cancelled while waiting for a node", "as Canceled: cancelled on request$", None, "Canceled", 130, apart=True,
          absent=[1], waits=False, inject=do.cancel_before_all_are_there),
    Fault("input missing on one node", "as Failed: node 1: input data: there is no .*/data$", "bootstrap_error",
          exit_code=126, node=1, apart=True, absent=[1], waits=False, inject=do.start_without_input,
          around=within.local_input),
    Fault("a node without file descriptors", r"as Lost: 1 of 2 nodes joined within .*; missing: node 1",
          "never_started", "Lost", 125, None, 1, apart=True, around=within.few_files(7, 1), waits=False,
          plan={"rendezvous_timeout_s": 4.0}),
]  # fmt: skip

NODES = [*BOOTSTRAPS, *APART]
