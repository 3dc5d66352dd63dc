"""Each Python of a rank runs this while it starts: from then on it can be asked where it is.

It answers one signal by writing the stacks of all its threads into a memory file of its own, where the bootstrap finds
them (see stacks.py): inside a system call, while other code holds the GIL, in a deadlock. Nothing of this stays in
sys.modules, and of sys.path only the last entry is ours; a `sitecustomize` of the user's own has its turn. PYTHONPATH
keeps the folder, so that Pythons that this one starts are armed too; its forks are in any case. It runs on whatever
Python a job has.
"""

import os
import sys

try:
    import faulthandler
    from _signal import SIGRTMAX  # type: ignore[import-not-found] # the module `signal` would make enums of them

    # A real-time signal: SIGUSR1 and SIGUSR2 are NCCL's, Slurm's and submitit's. A memory file: nothing is left behind.
    faulthandler.register(SIGRTMAX - 2, file=os.memfd_create("jobsdk-stacks"), all_threads=True, chain=False)
except Exception:  # nosec B110 # the job is worth more than its stacks
    pass

# What jobsdk offers to scripts, for where it is not installed: site-packages come first.
_folder = os.path.dirname(__file__)
sys.path[:] = [entry for entry in sys.path if entry != _folder]
sys.path.append(os.path.dirname(_folder) + "/python-helpers")
sys.path_importer_cache.pop(_folder, None)
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found] # noqa: E402, F401  Python passes over the ImportError that there is none
