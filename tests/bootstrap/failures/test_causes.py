"""The classes of failures: each by what real programs write, and for GPUs by what they are known to write."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.failures import classify, known_errors
from jobsdk.bootstrap.launchers import mpi_library, mpirun
from tests.bootstrap.endings import ending, python, raised, record, said, shell

OOM = {"oom": {"source": "cgroup", "limit": 512 << 20, "kills": 1}}


def judged(one: dict[str, Any]) -> tuple[str, str]:
    verdict = classify.judge(one)
    return verdict["class"], verdict["words"]


# -- PyTorch, made to fail -------------------------------------------------------------------------------------------

TORCH = {
    "port_in_use": ("port_in_use", r"found port \d+ in use: DistNetworkError: "),
    "nobody_joins": ("rendezvous_timeout", r"waited too long for other ranks at the start: .* 1/2 clients joined"),
    "nobody_listens": ("rendezvous_timeout", r"client socket has timed out .*127\.0\.0\.1"),
    "wrong_interface": ("gloo_error", r"Unable to find address for: eth77$"),
    "killed_peer": ("peer_lost", r"lost its connection to another rank: RuntimeError: \[pair\.cc:\d+\] "),
    "silent_peer": ("collective_timeout", r"Timed out waiting 2000ms for recv"),
    "bad_sample": ("exception", r"^exited with code 1: ValueError: a bad sample$"),
    "little_shared_memory": ("shared_memory", r"^ran out of shared memory \(/dev/shm\): .*No space left on device"),
    "worker_killed": ("worker_killed", r"a process that it had started was killed by SIGKILL: .*DataLoader worker"),
    "worker_crashed": ("segmentation_fault", r"a segmentation fault in a process that it had started$"),
    "spawned_child": ("exception", r"^exited with code 1: ValueError: in the child 0$"),
    "no_gpu": ("cuda_error", r"Torch not compiled with CUDA enabled"),
    "no_memory": ("out_of_memory", r"^ran out of memory: .*DefaultCPUAllocator: can't allocate memory"),
    "no_process_group": ("exception", r"Default process group has not been initialized"),
}


@pytest.fixture(scope="module")
def torch_failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torch")
    script = Path(__file__).parents[1] / "scripts/torch_failures.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    codes = json.loads((folder / "codes.json").read_text())
    return {name: record(folder / f"{name}.log", code) for name, code in codes.items()}


@pytest.mark.parametrize("name", TORCH)
def test_what_torch_says(torch_failures: dict[str, dict[str, Any]], name: str) -> None:
    cause, words = TORCH[name]
    found = judged(torch_failures[name])
    assert found[0] == cause
    assert re.search(words, found[1])


def test_the_port_that_torch_could_not_have_is_known(torch_failures: dict[str, dict[str, Any]]) -> None:
    one = torch_failures["port_in_use"]
    assert f"port: {classify.judge(one)['port']}," in one["error"]


def test_a_dataloader_worker_that_was_killed_for_want_of_memory(torch_failures: dict[str, dict[str, Any]]) -> None:
    """The rank ends with code 1; only the kernel's count tells why."""
    verdict = classify.judge({**torch_failures["worker_killed"], "evidence": OOM})
    assert verdict["class"] == "out_of_memory"
    assert verdict["words"].endswith("a process of it was killed by SIGKILL (limit of its cgroup: 512 MiB)")
    assert "the limit is 512 MiB" in verdict["advice"]


def test_of_all_that_torch_said_the_timeouts_and_the_lost_peer_come_last(
    torch_failures: dict[str, dict[str, Any]],
) -> None:
    first_to_last = ["bad_sample", "silent_peer", "killed_peer"]
    records = [{**torch_failures[name], "t": -float(index)} for index, name in enumerate(first_to_last)]
    for order in itertools.permutations(records):
        assert sorted(order, key=classify.likelihood) == records


# -- TensorFlow ------------------------------------------------------------------------------------------------------


@pytest.mark.framework("tensorflow")
def test_a_port_that_tensorflow_could_not_have(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        code = f"import tensorflow as tf; tf.distribute.Server({{'worker': ['127.0.0.1:{port}']}})"
        verdict = classify.judge(python(tmp_path / "log", code))
    assert (verdict["class"], verdict["port"]) == ("port_in_use", port)
    assert verdict["words"].startswith(f"found port {port} in use: ")


def test_a_worker_of_tensorflow_whose_peer_died() -> None:
    """TensorFlow 2.21, MultiWorkerMirroredStrategy, 10 s after the peer's SIGKILL."""
    error = (
        "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Error reported from"
        " /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):"
    )
    assert judged(raised(error))[0] == "peer_lost"


def test_what_tensorflow_logs_when_all_is_well_is_no_cause() -> None:
    """TensorFlow 2.21 without a GPU; the script then leaves with a code of its own."""
    line = (
        "E0000 00:00:1795298478.557749   11395 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error:"
        " Failed call to cuInit: UNKNOWN ERROR (303)"
    )
    assert judged(said(line, code=3)) == ("exit", "exited with code 3")


# -- the machine -----------------------------------------------------------------------------------------------------

NO_FILES = (
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); x = [open('/dev/null') for _ in range(9)]"
)
NO_PROCESSES = "import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); os.setuid(54321); "


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        ("raise ValueError('boom')", "exception", "exited with code 1: ValueError: boom"),
        ("assert 1 == 2, 'sizes'", "assertion", "exited with code 1: AssertionError: sizes"),
        ("import sys; sys.exit(7)", "exit", "exited with code 7"),
        ("import no_such_module", "import_error",
         "exited with code 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("from json import nothing", "import_error", "exited with code 1: ImportError: cannot import name 'nothing'"),
        ("import ctypes; ctypes.CDLL('libnone.so.1')", "import_error", "libnone.so.1: cannot open shared object file"),
        ("open('/no/such/file')", "file_not_found", "FileNotFoundError: [Errno 2]"),
        ("exec('def f(:')", "syntax_error", "SyntaxError: "),
        ("bytearray(1 << 60)", "out_of_memory", "ran out of memory: MemoryError"),
        ("import resource\n" + NO_FILES, "too_many_open_files", "ran out of file descriptors: OSError: [Errno 24]"),
        (NO_PROCESSES + "os.fork()", "too_many_processes", "could not start another process or thread: Blocking"),
        ("import threading, _thread\n" + NO_PROCESSES + "threading.Thread(target=print).start()",
         "too_many_processes", "RuntimeError: can't start new thread"),
        ("import ctypes; ctypes.string_at(0)", "segmentation_fault", "was killed by SIGSEGV: a segmentation fault"),
        ("import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)", "segmentation_fault",
         "was killed by SIGSEGV: a segmentation fault"),
        ("import os; os.abort()", "abort", "was killed by SIGABRT (abort)"),
        ("import os; os.kill(os.getpid(), 9)", "signal", "was killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 15)", "signal", "was killed by SIGTERM"),
        ("import os; os.kill(os.getpid(), 4)", "illegal_instruction", "was killed by SIGILL: an illegal instruction"),
        ("import os; os.kill(os.getpid(), 2); input()", "interrupted", "was interrupted: KeyboardInterrupt"),
        ("import os; os.kill(os.getpid(), 7)", "bus_error", "was killed by SIGBUS: a bus error"),
        ("import socket; a = socket.create_server(('', 0)); socket.socket().bind(a.getsockname())", "port_in_use",
         "found a port that is in use: OSError: [Errno 98]"),
        ("import socket; a, b = socket.socketpair(); b.close(); a.send(b'x')", "peer_lost", "BrokenPipeError"),
        ("import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)'],"
         " check=True)", "worker_killed", "a process that it had started was killed by SIGKILL"),
    ],
)  # fmt: skip
def test_a_python_program(tmp_path: Path, code: str, cause: str, words: str) -> None:
    found = judged(python(tmp_path / "log", code))
    assert found[0] == cause
    assert words in found[1]


@pytest.mark.parametrize(
    ("command", "cause", "words"),
    [
        ("no_such_command --epochs 3", "command_not_found", "no_such_command: command not found"),
        ("./no_such_file", "command_not_found", "./no_such_file: No such file or directory"),
        ("/tmp", "not_executable", "exited with code 126: bash: line 1: /tmp: Is a directory"),
        ("/etc/passwd", "not_executable", "/etc/passwd: Permission denied"),
        (f"{sys.executable} no_such_script.py", "file_not_found", "can't open file"),
        (f"{sys.executable} -m no_such_module", "import_error", "No module named no_such_module"),
        (f"{sys.executable} -c 'import os; os.kill(os.getpid(), 9)'; exit $?", "signal", "code 137 (SIGKILL)"),
        (f"{sys.executable} -c 'import os; os.kill(os.getpid(), 11)'; exit $?", "segmentation_fault",
         "exited with code 139 (SIGSEGV): a segmentation fault"),
    ],
)  # fmt: skip
def test_a_shell(tmp_path: Path, command: str, cause: str, words: str) -> None:
    found = judged(shell(tmp_path / "log", command))
    assert found[0] == cause
    assert words in found[1]


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main(:\n    pass\n")
    found = judged(ending(tmp_path / "log", sys.executable, str(tmp_path / "train.py")))
    assert found[0] == "syntax_error"
    assert found[1].startswith("exited with code 1: SyntaxError: ")


def test_killed_for_want_of_memory() -> None:
    """A traceback that was logged before has nothing to do with it."""
    for one in (said(code=137, signum=9), said(code=137), raised("ValueError: caught before", code=137, signal=9)):
        verdict = classify.judge({**one, "evidence": OOM})
        assert verdict["class"] == "out_of_memory"
        assert verdict["words"].startswith("ran out of memory and ")
        assert verdict["words"].endswith("(limit of its cgroup: 512 MiB)")
    kernel = classify.judge(said(code=137, signum=9, evidence={"oom": {"source": "kernel", "limit": None, "kills": 1}}))
    assert kernel["words"] == "ran out of memory and was killed by SIGKILL"
    assert "limit" not in kernel["advice"]


def test_another_process_that_was_killed_for_want_of_memory_is_not_why_this_one_ended() -> None:
    assert judged(raised("ValueError: 5", evidence=OOM))[0] == "exception"
    assert judged(said(code=143, signum=15, evidence=OOM))[0] == "signal"


# -- MPI -------------------------------------------------------------------------------------------------------------


@pytest.mark.framework("mpi")
def test_mpi_abort(tmp_path: Path) -> None:
    program = str(Path(sys.executable).parent / "mpirun")
    code = "from mpi4py import MPI; MPI.COMM_WORLD.Abort(5)"
    one = ending(tmp_path / "log", program, "--allow-run-as-root", "-n", "1", sys.executable, "-c", code)
    assert judged(one) == ("mpi_abort", "called MPI_Abort and exited with code 5")


def test_an_mpi_library_of_another_family() -> None:
    library = mpi_library.Library(mpirun.HYDRA, "/usr/lib/libmpi.so.12")
    words = mpi_library.mismatch(library, mpirun.Program(mpirun.OPENMPI, "/usr/bin/mpirun", "5.0"))
    verdict = classify.judge(said(error=words))
    assert verdict["class"] == "mpi_library"
    assert verdict["words"] == f"does not see the other ranks: {words}"
    assert verdict["advice"].startswith("set launcher: hydra")


# -- GPUs and NCCL ---------------------------------------------------------------------------------------------------

NCCL = (
    "torch.distributed.DistBackendError: NCCL error in:"
    " /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2588, "
)


@pytest.mark.parametrize(
    ("error", "cause", "advice"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 4.00"
         " GiB of which 41.56 MiB is free.", "cuda_out_of_memory", "smaller batch"),
        ("RuntimeError: CUDA error: out of memory", "cuda_out_of_memory", "smaller batch"),
        ("tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[9,9]",
         "cuda_out_of_memory", "smaller batch"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "cuda_error", "drain the node"),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda_error", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "cuda_error",
         "compute capability"),
        ("RuntimeError: CUDA error: invalid device ordinal", "cuda_error", "LOCAL_RANK"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_error", None),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "cuda_error",
         "update the NVIDIA driver"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "cuda_error", "no GPU is visible"),
        ("RuntimeError: No CUDA GPUs are available", "cuda_error", "no GPU is visible"),
        (NCCL + "internal error - please report this issue to the NCCL developers, NCCL version 2.21.5", "nccl_error",
         "the interface is ib0; "),
        (NCCL + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5", "nccl_error",
         "set NCCL_SOCKET_IFNAME"),
        ("torch.distributed.DistBackendError: ncclInternalError: Internal check failed. Last error: Bootstrap : no"
         " socket interface found", "nccl_error", "(ib0)"),
        ("torch.distributed.DistBackendError: ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
         " Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "cuda_error",
         "two ranks use the same GPU"),
        (NCCL + "remote process exited or there was a network error, NCCL version 2.18.6", "peer_lost", "victim"),
        ("torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to a network error or a"
         " remote process exiting prematurely.", "peer_lost", "victim"),
        ("c10::DistBackendError: [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with"
         " exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST)",
         "collective_timeout", "hang_timeout"),
        ("RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error", "gloo_error", "GLOO_SOCKET_IFNAME"),
    ],
)  # fmt: skip
def test_what_gpus_and_nccl_are_known_to_say(error: str, cause: str, advice: str | None) -> None:
    verdict = classify.judge(raised(error, evidence={"interface": "ib0"}))
    assert verdict["class"] == cause
    assert (verdict["advice"] or "") == "" if advice is None else advice in verdict["advice"]


def test_the_watchdogs_words_are_found_without_a_traceback() -> None:
    line = (
        "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation"
        " timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600020 milliseconds before timing"
        " out."
    )
    assert judged(said(line, "frame #6: clone + 0x44", code=134, signum=6))[0] == "collective_timeout"


def test_who_finds_nobody_listening_may_be_a_victim() -> None:
    """The interface is wrong, or the other rank is dead: if another failure is known, it comes first."""
    error = (
        "torch.distributed.DistBackendError: ncclSystemError: System call (e.g. socket, malloc) or external library"
        " call failed or device error. Last error: socketStartConnect: Connect to 10.0.0.2<45763> failed : Connection"
        " refused"
    )
    caller, culprit = raised(error, t=1.0), raised("ValueError: 5", t=2.0)
    assert min([caller, culprit], key=classify.likelihood) is culprit
    verdict = classify.judge(caller)
    assert (verdict["class"], verdict["secondary"]) == ("nccl_error", False)


# -- which was first -------------------------------------------------------------------------------------------------


def test_whatever_order_failures_arrive_in() -> None:
    culprit = said("bye", code=3, t=5.0)
    another = raised("ValueError: 5", t=6.0)
    silent = said(code=1, t=1.0)
    told = said(code=143, signum=15, t=1.0)
    launcher = {**said(code=7, t=2.0), "rank": None}
    late = raised("RuntimeError: Timed out waiting 2000ms for recv operation to complete", t=0.0)
    victim = raised("ConnectionResetError: [Errno 104] Connection reset by peer", t=0.0)
    aborted = said("  what():  Connection closed by peer [::1]:9", code=134, signum=6, t=0.5)
    stopped = raised("ValueError: while ending", t=0.0, stopped=True)
    everyone = [culprit, another, silent, told, launcher, late, victim, aborted, stopped]
    found = sorted(everyone, key=classify.likelihood)
    assert found[:2] == [culprit, another]
    assert found[-1] is stopped
    for order in itertools.permutations([another, silent, victim]):
        assert sorted(order, key=classify.likelihood) == [another, silent, victim]
    assert [classify.judge(one)["secondary"] for one in everyone] == [False] * 6 + [True] * 3


def test_a_node_that_is_lost_comes_before_those_who_miss_it() -> None:
    node = {"t": 16.0, "node": 1, "rank": None, "exit_code": 125, "class": "node_lost", "message": "node 1 is lost"}
    victim = raised("RuntimeError: [pair.cc:537] Read error [10.0.0.2]:1: Connection reset by peer", t=1.0)
    assert min([victim, node], key=classify.likelihood) is node


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ValueError: rank 3 has pid 712 at 10.0.0.4:29500", "ValueError: rank 4 has pid 99 at 10.0.0.5:301", True),
        ("KeyError: 'a'", "KeyError: 'b'", False),
        ("ValueError: 5 classes", "ValueError: 6 classes", False),
        ("RuntimeError: at 0x7f1e on cuda:0", "RuntimeError: at 0x81aa on cuda:3", True),
        ("OSError: 2026-11-21 10:00:07.25 late", "OSError: 2026-11-21 10:00:09.5 late", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3 MiB.",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5 MiB.", True),
        ("ValueError: 5", "TypeError: 5", False),
    ],
)  # fmt: skip
def test_the_same_error(one: str, other: str, same: bool) -> None:
    assert classify.same_error(raised(one), raised(other, rank=4, node=0)) is same


def test_the_same_end_without_a_word() -> None:
    assert classify.same_error(said(code=3), said(code=3, rank=4))
    assert not classify.same_error(said(code=3), said(code=4))
    assert not classify.same_error(said(code=137, signum=9), said(code=143, signum=15))


# -- what the coordinator knows itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", "node_lost never_started bootstrap_error preempted timeout hang cancelled unreachable".split()
)
def test_a_class_that_the_coordinator_has_found(name: str) -> None:
    one = {"t": 1.0, "node": 2, "rank": None, "exit_code": 125, "class": name, "error": "OSError: Broken pipe"}
    verdict = classify.judge(one)
    assert verdict["class"] == name
    assert verdict["words"]
    assert "Broken pipe" not in verdict["words"]
    assert not verdict["secondary"]


# -- the data --------------------------------------------------------------------------------------------------------


def test_every_sign_is_of_a_class_and_every_template_can_be_filled() -> None:
    facts = "how error way port interface master path free shm limit".split()
    advice = [line for sign in known_errors.SIGNS for line in sign.advice]
    for sign in known_errors.SIGNS:
        re.compile(sign.pattern)
        assert sign.name in known_errors.CLASSES
    for kind in known_errors.CLASSES.values():
        advice += kind.advice
        assert set(re.findall(r"{(\w+)}", kind.words)) <= set(facts)
    for line in [*advice, *(line for _, line in known_errors.ADVICE)]:
        assert set(re.findall(r"{(\w+)}", line)) <= set(facts)
        assert "\n" not in line
        assert len(line) <= 190


def test_advice_with_a_fact_gives_way_where_the_fact_is_not_known() -> None:
    full = {"disk": {"path": "/scratch", "free": 4096, "size": 1 << 30}}
    error = "OSError: [Errno 28] No space left on device"
    assert "/scratch has 4 KiB left" in classify.judge(raised(error, evidence=full))["advice"]
    assert classify.judge(raised(error))["advice"] == "free space, or write elsewhere"


# -- advice of TensorFlow's ------------------------------------------------------------------------------------------

FIT = """  File "train.py", line 57, in main
    model.fit(training, epochs=3)
  File "site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
"""
PER_REPLICA = "ValueError: Attempt to convert a value (PerReplica:{"
TO_A_TENSOR = "}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor."
REDUCTION = (
    "ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Sum_3}} = Sum[T=DT_FLOAT,"
    " Tidx=DT_INT32, keep_dims=false](div_no_nan_1, Sum_3/reduction_indices)' with input shapes: [], []"
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (FIT + PER_REPLICA, "TF_USE_LEGACY_KERAS=1"),
        (FIT + TO_A_TENSOR, "TF_USE_LEGACY_KERAS=1"),
        (FIT + REDUCTION, "strategy.run"),
        ("ImportError: Keras cannot be imported. Check that it is installed.", "pip install tf_keras"),
        ("ValueError: There must be at least one ps.", "parameter_server_count: 1"),
        ("ValueError: Cluster spec must be non-empty in `tf.distribute.cluster_resolver.ClusterResolver`.",
         "of the type tensorflow"),
        ("ValueError: There is no id for task_type 'ps'", "remove parameter_server_count"),
        ("RuntimeError: Collective ops must be configured at program startup", "before the first tensor"),
        ("AssertionError: DeepSpeed requires --deepspeed_config to specify configuration file", "--deepspeed_config"),
    ],
)  # fmt: skip
def test_what_to_do(words: str, says: str) -> None:
    advice = classify.judge(said("epoch 1/2 loss 0.4", *words.split("\n")))["advice"]
    assert says in advice


@pytest.mark.parametrize(
    "words",
    ["", "ValueError: x", FIT + "ValueError: x", PER_REPLICA, REDUCTION],
    ids=["nothing", "any", "fit", "a loop's own mistake", "a reduction of one's own"],
)
def test_nothing_is_said_of_other_errors(words: str) -> None:
    assert classify.judge(said(*words.split("\n")))["advice"] is None


def test_who_fails_in_silence_while_the_disk_is_full_failed_of_that() -> None:
    """Its log could not take the error either."""
    disk = {"disk": {"path": "/run", "free": 0, "size": 1 << 22}}
    found = classify.judge(said(evidence=disk))
    assert (found["class"], found["words"]) == ("disk_full", "exited with code 1, and the disk of /run is full")
    assert classify.judge(raised("ValueError: x", evidence=disk))["class"] == "exception"


def test_mpich_at_the_end_of_a_world_that_is_gone() -> None:
    lines = ["MPIDI_UCX_mpi_finalize_hook(303): ", "pmi1_barrier(120)...............: PMI_Barrier returned -1"]
    verdict = classify.judge({"t": 1.0, "rank": 0, "node": 0, "exit_code": 1, "signal": None, "last_lines": lines})
    assert (verdict["class"], verdict["secondary"]) == ("peer_lost", True)
