"""What runs in the container: turns plan and node into processes, watches them, and explains failures.

Standard library only, Python 3.8 or later, no import from the rest of jobsdk: `jobsdk.bootstrap.archive` packs this
folder into one small .pyz. Its packages import downwards only, in this order:

    agent                                                what runs on each node
    coordinator                                          the part on node 0 that decides for all
    remote_shell  preflight  hangs  transport  detect
    launchers                                            programs that start ranks: mpirun, deepspeed, ray
    distributions  failures  control
    spec                                                 what crosses borders: plan, paths, events, exit codes
    system                                               processes, network, GPUs of this machine

The rest of jobsdk may import `spec` and `system`, and what computes its plans and explains its runs.
"""

from __future__ import annotations
