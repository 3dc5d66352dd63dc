"""The errors that jobsdk knows: their classes, in words and with advice, and what they say.

Data: to know one more error, add a line to SIGNS, and to CLASSES if it is of a new kind. Read only when something has
failed.
"""

from __future__ import annotations

import signal
from typing import Dict, NamedTuple, Optional, Tuple

# -- the classes -----------------------------------------------------------------------------------------------------

#: How near to the root a failure is; of all failures of a job the least is the cause.
ROOT, SILENT, WAITED, VICTIM, STOPPED = range(5)


class Class(NamedTuple):
    """`words` completes "rank 3 on node 1 ...". `advice`: the first of which every {fact} is known."""

    words: str = "{how}: {error}"
    advice: Tuple[str, ...] = ()
    place: int = ROOT


_INTERFACE = (
    "the interface is {interface}; if another one reaches the other nodes, set {library}_SOCKET_IFNAME to its name"
    " in environment_variables",
    "if the wrong interface was taken, set {library}_SOCKET_IFNAME in environment_variables to the one that reaches"
    " the other nodes",
)
_WITH_NCCL = tuple(line.replace("{library}", "NCCL") + " (NCCL_DEBUG: INFO tells more)" for line in _INTERFACE)
_WITH_RAY = (
    "Ray's own words are in logs/node-N/ray.log: all nodes need the same versions of Ray and Python, and must reach one"
    " another at all ports",
)
_WITH_GLOO = tuple(line.replace("{library}", "GLOO") for line in _INTERFACE)

CLASSES: Dict[str, Class] = {
    "exception": Class(),
    "assertion": Class(),
    "syntax_error": Class(),
    "exit": Class("{how}"),
    "signal": Class("{how}"),
    "worker_killed": Class(
        "{how}, as a process that it had started was killed by SIGKILL: {error}",
        ("most often the kernel, for want of memory, or a guard of the node: its log (dmesg) tells",),
    ),
    "interrupted": Class("was interrupted: {error}", place=SILENT),
    "out_of_memory": Class(
        "ran out of memory: {error}",
        (
            "the limit is {limit}: give the job more memory, or take a smaller batch, fewer DataLoader workers or"
            " processes per node",
            "take a smaller batch, fewer DataLoader workers or processes per node, or nodes with more memory",
        ),
    ),
    "disk_full": Class(
        "ran out of disk space: {error}",
        ("{path} has {free} left: free some space there, or write elsewhere", "free space, or write elsewhere"),
    ),
    "bus_error": Class(
        "{how}: a bus error",
        (
            "most often /dev/shm is too small (here {shm}): give the container more shared memory (shm_size), or use"
            " num_workers=0",
            "most often /dev/shm is too small: give the container more shared memory (shm_size), or use num_workers=0",
        ),
    ),
    "shared_memory": Class(
        "ran out of shared memory (/dev/shm): {error}",
        ("give the container more shared memory (shm_size), or use fewer DataLoader workers (num_workers)",),
    ),
    "import_error": Class(
        advice=("install it in the job's environment; if it is a file of yours, it must lie in the job's code folder",)
    ),
    "port_in_use": Class(
        "found {port} in use: {error}",
        ("take the port from MASTER_PORT and do not fix one: two jobs on one machine cannot share it",),
    ),
    "cuda_out_of_memory": Class(
        "ran out of GPU memory: {error}",
        ("take a smaller batch per process; see that no other process uses this GPU (nvidia-smi)",),
    ),
    "cuda_error": Class("had a CUDA error: {error}"),
    "nccl_error": Class("had an NCCL error: {error}", _WITH_NCCL),
    "gloo_error": Class("could not connect to the other ranks with Gloo: {error}", _WITH_GLOO),
    "peer_lost": Class(
        "lost its connection to another rank: {error}",
        ("this rank is a victim: look at what the rank that it lost wrote last",),
        VICTIM,
    ),
    "collective_timeout": Class(
        "waited too long for other ranks in a collective operation: {error}",
        (
            "a rank did something else or stood still; hang_timeout (--hang-timeout 5m) shows where each rank is"
            " before this happens",
        ),
        WAITED,
    ),
    "rendezvous_timeout": Class(
        "waited too long for other ranks at the start: {error}",
        (
            "every rank must call init_process_group with MASTER_ADDR, MASTER_PORT ({master}) and WORLD_SIZE as they"
            " are set",
            "every rank must call init_process_group with MASTER_ADDR, MASTER_PORT and WORLD_SIZE as they are set",
        ),
        WAITED,
    ),
    "mpi_error": Class(),
    "mpi_abort": Class("called MPI_Abort and {how}"),
    "mpi_library": Class("does not see the other ranks: {error}"),
    "segmentation_fault": Class(
        "{how}: a segmentation fault",
        ("PYTHONFAULTHANDLER: 1 in environment_variables shows the Python line at which a crash happens",),
    ),
    "abort": Class("{how} (abort): {error}"),
    "illegal_instruction": Class(
        "{how}: an illegal instruction", ("a library was built for a newer processor than this node's",)
    ),
    "command_not_found": Class(advice=("the command must be on PATH in the job's environment",)),
    "not_executable": Class(
        advice=("make the file executable (chmod +x), or start it with its interpreter: bash FILE, python FILE",)
    ),
    "file_not_found": Class(
        advice=("relative paths begin at the job's working directory, where the code folder is copied to",)
    ),
    "permission_denied": Class(),
    "too_many_open_files": Class(
        "ran out of file descriptors: {error}",
        ("raise the limit (ulimit -n) in the command, or with PyTorch's DataLoader: torch.multiprocessing"
         ".set_sharing_strategy('file_system')",),
    ),
    "too_many_processes": Class(
        "could not start another process or thread: {error}",
        ("raise the limit of processes (ulimit -u, the container's pids limit), or use fewer workers and threads",),
    ),
    # The coordinator says these itself; their messages have their facts.
    "node_lost": Class("was lost", ("the machine or its network failed, or its bootstrap was killed",)),
    "never_started": Class("never started", ("see that all nodes were allocated and reach node 0's control port",)),
    "ray_lost": Class(
        "lost a part of its Ray cluster: {error}",
        ("an actor's process that dies by itself is most often short of memory; Ray's own words are in"
         " logs/node-N/ray.log",),
        WAITED,
    ),
    "ray_missing": Class("did not join the Ray cluster", _WITH_RAY),
    "ray_ended": Class("lost its part of the Ray cluster", _WITH_RAY),
    "unreachable": Class("cannot be reached", ("jobsdk doctor --job FILE tries every pair of nodes",)),
    "bootstrap_error": Class("could not be started"),
    "upload_failed": Class("could not upload its outputs", ("the files are still in the run's folder on the node",)),
    "preempted": Class("was taken away by its scheduler", ("max_preemptions restarts a job that was preempted",)),
    "no_progress": Class("failed again and again"),
    "timeout": Class("was stopped: the job's time was up", ("limits.timeout sets the time",)),
    "hang": Class("stood still", ("see where the ranks are: the odd one out is most often the one to look at",)),
    "cancelled": Class("was cancelled", place=STOPPED),
    "vanished": Class("vanished", place=SILENT),
    "unreported": Class("did not report its end", place=SILENT),
}  # fmt: skip

# -- their signs -----------------------------------------------------------------------------------------------------


class Sign(NamedTuple):
    """What an error says, and what that means. `advice` and `place` go before those of the class."""

    name: str
    pattern: str  # a regular expression; compiled when it is needed, as that takes longer than to judge a failure
    advice: Tuple[str, ...] = ()
    place: Optional[int] = None


def _sign(name: str, pattern: str, *advice: str, place: Optional[int] = None) -> Sign:
    return Sign(name, pattern, advice, place)


#: Looked for in the exception's message; without an exception in the last lines. The first that is found counts.
#: Sources: what torch 2.13, TensorFlow 2.21, mpi4py 4.1, Open MPI 5, bash and Python 3.11 were made to write; for GPUs
#: and NCCL their sources and reports of their users.
SIGNS = (
    _sign("mpi_library", r"each rank is a world of size 1", "{way}"),  # mpi_library.mismatch, which knows the way out
    _sign(
        "mpi_library",
        r"cannot load MPI library|libmpi\w*\.so[\d.]*: cannot open shared object file",
        "install an MPI library (Open MPI or MPICH) in the job's environment, or set launcher: direct",
    ),
    _sign("import_error", r"(ModuleNotFoundError|ImportError): |: No module named '?[\w.]+'?$"),
    _sign("import_error", r"error while loading shared libraries: |OSError: \S+: cannot open shared object file"),
    # A GPU
    _sign("cuda_out_of_memory", r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
                                r"|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory|OOM when allocating tensor"
                                r"|RESOURCE_EXHAUSTED: Out of memory|Cuda failure .*out of memory"),
    _sign("cuda_error", r"device-side assert triggered",
          "an index is out of range on the GPU (a label, a token): CUDA_LAUNCH_BLOCKING: 1 shows the Python line"),
    _sign("cuda_error", r"no kernel image is available",
          "this build of the framework has no code for this GPU: install one for its compute capability"),
    _sign("cuda_error", r"driver on your system is too old|driver version is insufficient",
          "update the NVIDIA driver of the node, or install a build for an older CUDA"),
    _sign("cuda_error", r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device is detected"
                        r"|Torch not compiled with CUDA enabled|CUDA_ERROR_NO_DEVICE",
          "no GPU is visible here: the node needs a GPU and its driver, the environment a build with CUDA, and"
          " CUDA_VISIBLE_DEVICES must not be empty"),
    _sign("cuda_error", r"invalid device ordinal",
          "there is no GPU of that number: use LOCAL_RANK, and no more processes per node than GPUs"),
    _sign("cuda_error", r"uncorrectable (NVLink|ECC) error|ECC_UNCORRECTABLE|NVRM: Xid|GPU has fallen off the bus"
                        r"|GPU is lost|hardware stack error",
          "the GPU itself failed: drain the node and reset or replace the GPU"),
    _sign("cuda_error", r"Duplicate GPU detected",
          "two ranks use the same GPU: call torch.cuda.set_device(LOCAL_RANK), with a GPU for each process of a node"),
    _sign("cuda_error", r"CUDA error: |CUDA driver error: |CUDA_ERROR_\w+|cudaError\w+|CUBLAS_STATUS_\w+"
                        r"|CUDNN_STATUS_\w+|cuDNN error"),
    # Ray; what was lost may be a node's part of the cluster, which that node tells a second later
    _sign("ray_lost", r"ray\.exceptions\.(Actor(Died|Unavailable)|NodeDied|WorkerCrashed|Object\w*Lost|OwnerDied|Raylet"
                      r"|LocalRaylet|RaySystem|Rpc)\w*\b"),
    # A port or the network
    _sign("port_in_use", r"EADDRINUSE|(?i:address already in use)|Could not start gRPC server"),
    _sign("collective_timeout", r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for"
                                r"|monitoredBarrier|DEADLINE_EXCEEDED|DeadlineExceededError"
                                r"|Some NCCL operations have failed or timed out|[Cc]ollective operation timeout"),
    _sign("rendezvous_timeout", r"seconds waiting for clients|client socket has (timed out|failed)"
                                r"|wait timeout after \d+ ?ms|Socket Timeout|waitForInput: .* timed out"
                                r"|RendezvousTimeoutError|RendezvousConnectionError"),
    # Nobody listens there: the other rank has ended, or the address is one that cannot be reached.
    _sign("nccl_error", r"socket\w*Connect: |Call to connect (to .*)?failed", place=WAITED),
    _sign("gloo_error", r"connectFullMesh|timed out connecting: ", place=WAITED),
    _sign("peer_lost", r"(?i)connection (was )?(closed|reset|refused)|broken pipe|ConnectionResetError|BrokenPipeError"
                       r"|ConnectionAbortedError|ConnectionRefusedError|socket closed|socket was closed"
                       r"|ncclRemoteError|NCCL remote|remote process exited|failed to recv, got 0 bytes"
                       r"|pair closure|UnavailableError|stopped sending heartbeats|CoordinationServiceError"
                       r"|NCCL communicator was aborted|lost communication with|lost connection"
                       r"|PMI\w*_\w+ returned -1"),
    _sign("gloo_error", r"gloo/transport/tcp/device\.cc.*Unable to find (address|interface) for|ifa != nullptr",
          "GLOO_SOCKET_IFNAME names an interface that this node does not have; without it jobsdk sets the one that"
          " reaches node 0"),
    _sign("nccl_error", r"no socket interface found",
          "NCCL_SOCKET_IFNAME names an interface that this node does not have; without it jobsdk sets the one that"
          " reaches node 0 ({interface})",
          "NCCL_SOCKET_IFNAME names an interface that this node does not have; without it jobsdk sets the one that"
          " reaches node 0"),
    _sign("nccl_error", r"nccl\w*(Error|Usage)\b|NCCL error|NCCL WARN"),
    _sign("gloo_error", r"gloo/"),
    # What the machine has too little of
    _sign("shared_memory", r"unable to (allocate|write|open|mmap|resize) shared memory|insufficient shared memory"
                           r"|Error while creating shared memory|No space left on device: '/(psm|torch|mp|loky)[-_]"
                           r"|No space left on device.*/dev/shm|/dev/shm.*No space left on device"),
    _sign("disk_full", r"No space left on device|ENOSPC|\[Errno 28\]"),
    _sign("disk_full", r"Disk quota exceeded|\[Errno 122\]", "the user's quota is used up: free space, or write"
                                                              " elsewhere"),
    _sign("too_many_open_files", r"Too many open files|\[Errno 2[34]\]|received 0 items of ancdata"),
    _sign("too_many_processes", r"BlockingIOError: \[Errno 11\]|fork: (retry: )?Resource temporarily unavailable"
                                r"|can't start new thread|pthread_create failed|Thread creation failed"
                                r"|[Ff]ork.*Resource temporarily unavailable"),
    _sign("out_of_memory", r"\bMemoryError\b|std::bad_alloc|\[Errno 12\]|Cannot allocate memory|can't allocate memory"),
    # MPI
    _sign("mpi_error", r"mpi4py\.MPI\.Exception: |MPI_ERRORS_ARE_FATAL|\*\*\* An error occurred in MPI_"),
    _sign("mpi_abort", r"MPI_ABORT was invoked|application called MPI_Abort|called MPI_Abort"),
    # Python and the shell
    _sign("syntax_error", r"(?m)^(SyntaxError|IndentationError|TabError): "),
    _sign("interrupted", r"(?m)^KeyboardInterrupt"),
    _sign("file_not_found", r"FileNotFoundError: |can't open file .*No such file or directory"),
    _sign("permission_denied", r"PermissionError: |can't open file .*Permission denied|Permission denied: "),
    _sign("assertion", r"(?m)^AssertionError"),
    _sign("abort", r"terminate called without an active exception",
          "a thread outlived main(): a script that uses torch.distributed calls destroy_process_group() at its end"),
    _sign("abort", r"terminate called|Fatal Python error: Aborted"),
)  # fmt: skip

#: By the signal that a rank, or a process of it, was killed by.
BY_SIGNAL: Dict[int, str] = {
    signal.SIGSEGV: "segmentation_fault", signal.SIGBUS: "bus_error", signal.SIGILL: "illegal_instruction",
    signal.SIGABRT: "abort", signal.SIGINT: "interrupted",
}  # fmt: skip
#: Killed from outside: what was written before has nothing to do with it, and most often another's failure has.
FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
#: A process that the rank had started was killed: by the shell's code, or as the one that waited for it says.
CHILD = (
    r"(?:killed by signal: |died with <Signals\.|terminated with signal |exit ?codes? ?[:=] ?-|return code = -)"
    r"(SIGKILL|SIGSEGV|SIGBUS|SIGILL|SIGABRT|Killed|Segmentation fault|Bus error|Illegal instruction|Aborted"
    r"|9|11|7|4|6)\b"
    r"|Unexpected (segmentation fault|bus error) encountered in worker"
)
CHILD_SIGNALS: Dict[str, int] = {
    "killed": signal.SIGKILL, "segmentation fault": signal.SIGSEGV, "bus error": signal.SIGBUS,
    "illegal instruction": signal.SIGILL, "aborted": signal.SIGABRT,
}  # fmt: skip

_IN_FIT = r"\.fit\([\s\S]*"
#: Advice for errors of frameworks that are exceptions like others, by their traceback and the last lines.
ADVICE = (
    (
        # Only from within `fit`: in a loop of one's own they tell of other mistakes.
        _IN_FIT + r"(value \(PerReplica|\.PerReplica'>\) to a Tensor"
        r"|Invalid reduction dimension 0 for input with 0 dimensions)",
        "fit of Keras 3 fails under MultiWorkerMirroredStrategy: install tf_keras and set TF_USE_LEGACY_KERAS=1 in"
        " environment_variables, or write the loop with strategy.run",
    ),
    (
        r"ImportError: Keras cannot be imported",
        "with TF_USE_LEGACY_KERAS=1 tf.keras is the package tf_keras, which has TensorFlow's version:"
        " pip install tf_keras",
    ),
    (
        r"ValueError: There must be at least one ps\.",
        "ParameterServerStrategy needs a server: set parameter_server_count: 1 and chief: true in the distribution",
    ),
    (
        r"ValueError: Cluster spec must be non-empty",
        "the strategy found no TF_CONFIG: the job's distribution must be of the type tensorflow",
    ),
    (
        r"ValueError: There is no id for task_type 'ps'",
        "MultiWorkerMirroredStrategy has no parameter servers: remove parameter_server_count from the distribution",
    ),
    (
        r"Collective ops must be configured at program startup",
        "create the strategy before anything else of TensorFlow: before the first tensor, data set or model",
    ),
    (
        # It takes the name of a file that is not there for a configuration in base64.
        r"DeepSpeed requires --deepspeed_config|Expected a string path to an existing deepspeed config"
        r"|deepspeed/runtime/config\.py[\s\S]*binascii\.Error: ",
        "DeepSpeed found no configuration: pass --deepspeed_config with a file of the job's code folder",
    ),
    (
        r"Default process group has not been initialized",
        "call torch.distributed.init_process_group() before the first collective operation",
    ),
)
