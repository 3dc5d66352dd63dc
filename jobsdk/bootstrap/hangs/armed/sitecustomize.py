"""Each Python of a rank runs this while it starts: from then on it can be asked where it is.

It answers one signal by writing the stacks of all its threads into a memory file of its own, where the bootstrap finds
them (see stacks.py): inside a system call, while other code holds the GIL, in a deadlock. It leaves two notes for the
agent: which Python this is (see agent/inventory.py), and at the end an MPI or Horovod world of one process. Nothing of
this stays in sys.modules, and of sys.path only the last entry is ours; a `sitecustomize` of the user's own has its
turn. PYTHONPATH keeps the folder, so that Pythons that this one starts are armed too; its forks are in any case. It
runs on whatever Python a job has.
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


def _leave(path, text):  # type: ignore[no-untyped-def]
    """Write a new file, with the rights of its folder."""
    try:
        mode = os.stat(os.path.dirname(path)).st_mode & 0o666
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        os.write(file, text.encode(errors="replace"))
        os.close(file)
    except OSError:
        pass  # another one of this node was first; a full disk


def _note_world(reports, modules, leave):  # type: ignore[no-untyped-def]
    """At the end: leave a file where MPI or Horovod saw one process only; the agent knows how many there are."""
    try:
        torch = modules.get("torch.distributed")
        if torch is not None and torch.is_available() and torch.is_initialized():
            return
        for name in ("mpi4py.MPI", "horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.mxnet"):
            module = modules.get(name)
            if module is None:
                continue
            if name == "mpi4py.MPI":
                is_alone = module.Is_initialized() and not module.Is_finalized() and module.COMM_WORLD.size == 1
            else:
                is_alone = module.is_initialized() and module.size() == 1
            if is_alone:
                leave(reports + ".alone", name.split(".")[0])
                return
    except Exception:  # nosec B110 # the job is worth more than a warning
        pass


_reports = os.environ.get("JOBSDK_REPORTS")
if _reports:
    import atexit

    atexit.register(_note_world, _reports, sys.modules, _leave)
    _python = "\0".join([sys.executable, sys.version.split()[0], *sys.path])
    _node = os.path.dirname(_reports)  # RUN_DIR/logs/node-0
    _name = "/python-" + os.path.basename(_node)
    _leave(os.path.dirname(os.path.dirname(_node)) + _name, _python)  # type: ignore[no-untyped-call]

# What jobsdk offers to scripts, for where it is not installed: site-packages come first.
_folder = os.path.dirname(__file__)
sys.path[:] = [entry for entry in sys.path if entry != _folder]
sys.path.append(os.path.dirname(_folder) + "/python-helpers")
sys.path_importer_cache.pop(_folder, None)
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found] # noqa: E402, F401  Python passes over the ImportError that there is none
