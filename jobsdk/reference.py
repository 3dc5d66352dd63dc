"""What names mean that users meet: variables, events, classes of failures, exit codes. The reference is made of it.

Data, and read by nothing that runs a job: what is set, written or told is in the code; this only says it in words. The
tests see that nothing is missing here and that nothing is left over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jobsdk.bootstrap.spec import exit_codes

#: Variables of the contract. `<name>` stands for the name of an input or output.
VARIABLES: Mapping[str, str] = {
    "MASTER_ADDR": "node 0's address, at which the others reached it",
    "MASTER_PORT": "a port that was free on node 0 when the job started",
    "WORLD_SIZE": "how many processes the job has",
    "RANK": "this process's number among them, counted node by node",
    "LOCAL_RANK": "its number on its node",
    "LOCAL_WORLD_SIZE": "how many processes its node has",
    "NODE_RANK": "its node's number",
    "GROUP_RANK": "the same, under torchrun's name",
    "NODE_COUNT": "how many nodes the job has",
    "ROLE_NAME": "torchrun's name of the role: always `default`",
    "ROLE_RANK": "the same as RANK, under torchrun's name",
    "ROLE_WORLD_SIZE": "the same as WORLD_SIZE, under torchrun's name",
    "GROUP_WORLD_SIZE": "the same as NODE_COUNT, under torchrun's name",
    "TORCHELASTIC_RUN_ID": "the run's name; frameworks tell by it that a launcher started the script",
    "TORCHELASTIC_RESTART_COUNT": "how often the job was started again",
    "TORCHELASTIC_MAX_RESTARTS": "the job's `max_restarts`",
    "TORCHELASTIC_USE_AGENT_STORE": "`False`: rank 0 opens the store at MASTER_PORT itself",
    "TORCHELASTIC_ERROR_FILE": "where torch's `@record` writes the exception; the card reads it",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "`1`: an error in a collective ends the process, as under torchrun",
    "TF_CONFIG": "TensorFlow's cluster with real `host:port` pairs, and this process's task; no empty roles",
    "OMPI_COMM_WORLD_RANK": "the same as RANK, as an MPI job of Azure ML sees it",
    "OMPI_COMM_WORLD_SIZE": "the same as WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "the same as LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "the same as LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK": "in Open MPI's words: the rank within the node",
    "AZ_BATCH_MASTER_NODE": "`MASTER_ADDR:MASTER_PORT`",
    "AZ_BATCHAI_MPI_MASTER_NODE": "node 0's address, which Azure ML sets on a single node",
    "OMPI_ALLOW_RUN_AS_ROOT": "lets an `mpirun` of your own start as root",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "the second half of it",
    "OMPI_MCA_plm": "how an `mpirun` of your own starts its daemons: by the job's remote shell",
    "OMPI_MCA_plm_rsh_agent": "the remote shell",
    "OMPI_MCA_plm_rsh_num_concurrent": "how many nodes it starts at once",
    "OMPI_MCA_orte_leave_session_attached": "keeps the daemons' output and exit codes",
    "OMPI_MCA_ras": "keeps it from asking a scheduler for hosts",
    "OMPI_MCA_oob_tcp_if_include": "the network that leads to the other nodes, for the daemons",
    "OMPI_MCA_btl_tcp_if_include": "the same for the ranks",
    "PRTE_MCA_plm": "how Open MPI 5 starts its daemons: by the job's remote shell",
    "PRTE_MCA_plm_ssh_agent": "the remote shell, for Open MPI 5",
    "PRTE_MCA_plm_ssh_num_concurrent": "how many nodes it starts at once, for Open MPI 5",
    "PRTE_MCA_prte_leave_session_attached": "as above, for Open MPI 5",
    "PRTE_MCA_ras": "as above, for Open MPI 5",
    "PRTE_MCA_prte_if_include": "as above, for Open MPI 5",
    "CROSS_RANK": "the node's number, under DeepSpeed's name",
    "CROSS_SIZE": "how many nodes there are, under DeepSpeed's name",
    "LOCAL_SIZE": "how many processes the node has, under DeepSpeed's name",
    "JOBSDK_HOSTFILE": "a file of `host slots=n` lines",
    "JOBSDK_MACHINEFILE": "a file of `host:n` lines",
    "JOBSDK_DEEPSPEED_CONFIG": "the path of DeepSpeed's configuration, for `--deepspeed_config`",
    "RAY_ADDRESS": "the job's own Ray cluster, which `ray.init()` joins",
    "RAY_AUTH_MODE": "`token`: the cluster lets in who has its token",
    "RAY_AUTH_TOKEN_PATH": "the file of that token",
    "RAY_USAGE_STATS_ENABLED": "`0`: Ray reports nothing to its makers",
    "OMP_NUM_THREADS": "the node's cores over its processes, at least 1",
    "NCCL_SOCKET_IFNAME": "the interface that routes to MASTER_ADDR, or the compute's `network.interface`",
    "GLOO_SOCKET_IFNAME": "the same for Gloo",
    "CUDA_VISIBLE_DEVICES": "this process's GPUs, taken by index from the list that the node inherited",
    "JOBSDK_GPUS_PER_PROCESS": "how many GPUs are its own, or the share of one",
    "JOBSDK_TORCH_BACKEND": "`torch_config.backend`, which `jobsdk.train.init_process_group()` uses",
    "JOBSDK_TORCH_INIT_METHOD": "`torch_config.init_method`",
    "JOBSDK_TORCH_TIMEOUT_S": "`torch_config.timeout_s`, in seconds",
    "AZUREML_RUN_ID": "the run's name",
    "AZUREML_NODE_COUNT": "how many nodes the job has",
    "AZUREML_CR_NODE_RANK": "the node's number",
    "AZUREML_PROCESS_NAME": "the role and its number: `rank_3`, `worker_1`, `ps_0`",
    "AZ_BATCH_HOST_LIST": "all nodes' addresses, with commas",
    "AZURE_ML_INPUT_<name>": "the input's path, or its text",
    "AZURE_ML_OUTPUT_<name>": "the output's path",
    "MLFLOW_TRACKING_URI": "a store in the run's folder; of the ranks above 0 each has its own",
    "MLFLOW_RUN_ID": "MLflow's run of this job",
    "MLFLOW_EXPERIMENT_NAME": "the job's `experiment_name`, or `Default`",
    "MLFLOW_EXPERIMENT_ID": "its id in that store",
    "MLFLOW_ALLOW_FILE_STORE": "lets a recent MLflow use a store of files",
    "PYTHONUNBUFFERED": "`1`: lines are in the log when they are printed",
    "PYTHONPATH": "in front of what there is: a folder that lets the stacks be asked for and brings `jobsdk.train`",
    "PATH": "in front of what there is: a folder with the job's own `ssh` and `pdsh`",
    "JOBSDK_RUN_NAME": "the run's name",
    "JOBSDK_RUN_DIR": "the run's folder on this node",
    "JOBSDK_RESTART_COUNT": "how often the job was started again",
    "JOBSDK_REPORTS": "the file that `jobsdk.train.report` writes to",
    "JOBSDK_RESULT": "the file that a function's value goes to",
}  # fmt: skip


class Event(NamedTuple):
    """`by`: who writes it. Beside `facts` each event has `t`, the time in seconds since 1970, and `event`, its name."""

    by: str
    facts: tuple[str, ...]
    meaning: str


def _event(by: str, facts: str, meaning: str) -> Event:
    return Event(by, tuple(facts.split()), meaning)


#: Those of `events.jsonl`, in the order in which a run writes them.
EVENTS: Mapping[str, Event] = {
    "submitted": _event("client", "by", "the run was made; `by` is the pid that made it"),
    "queued": _event("compute", "message job nodes refused", "it waits for machines, and for what; `refused`: the "
                     "engine does not take it as it is"),
    "allocated": _event("compute", "node nodes host hosts pod job gpus", "it has machines: one by one, or all at once"),
    "supervisor_started": _event("compute", "pid start", "local: the process that runs all nodes"),
    "preparing": _event("bootstrap", "", "local: inputs are being linked and fetched"),
    "bootstrap_up": _event("bootstrap", "node pid host", "a node's bootstrap is there"),
    "code_staged": _event("bootstrap", "node seconds", "the node has the code"),
    "input_staged": _event("bootstrap", "node name uri files bytes seconds", "the node has an input; the last three "
                           "for one that it fetched from an object store"),
    "waiting": _event("node 0", "message missing", "nodes are missing, and which"),
    "node_joined": _event("node 0", "node host pid", "a node has joined the control port"),
    "started": _event("node 0", "master_addr master_port restart", "all are there; the ranks are being started"),
    "inventory": _event("node 0", "node system cores memory gpus driver python", "what a node has; of node 0 also the "
                        "Python of the ranks: executable, version, and packages if `packages.json` does not have them"),
    "rank_started": _event("node 0", "node rank pid", "a rank was started, by its node's clock set right"),
    "first_output": _event("node 0", "node rank", "a rank has written its first line"),
    "metric": _event("node 0", "node rank", "a rank has reported for the first time; all is in `reports-RANK.log`"),
    "rank_ended": _event("node 0", "node rank exit_code signal", "a rank has ended"),
    "output_uploaded": _event("node 0", "node name url checkpoint files bytes seconds", "an output, or a checkpoint in "
                              "it, is in its object store"),
    "failure": _event("node 0", "node rank exit_code message class alone", "a first failure is known"),
    "stopping": _event("node 0", "reason message", "all nodes stop their ranks"),
    "restart": _event("node 0", "restart decision message used delay summary", "it starts again, and why"),
    "taken_up": _event("bootstrap", "restart", "a new node 0 goes on where one left off that the scheduler took away"),
    "left": _event("node 0", "report", "the scheduler ended node 0; the run's state at that time"),
    "warning": _event("any", "node message told", "something that people should know; `told`: they do already"),
    "cancel_requested": _event("client", "by", "somebody wants it to end"),
    "ended": _event("node 0", "status exit_code message", "the last word; without node 0 the compute's"),
}  # fmt: skip


#: Classes of failures: `cause.class` of a report, and what `retry_on` and `never_retry_on` may name.
FAILURES: Mapping[str, str] = {
    "exception": "a Python exception that has no class of its own",
    "assertion": "a failed assertion",
    "syntax_error": "code that Python cannot read",
    "exit": "an exit code, with no error in the output",
    "signal": "a signal that has no class of its own",
    "worker_killed": "a process that the rank had started was killed",
    "interrupted": "KeyboardInterrupt, by a SIGINT that jobsdk did not send",
    "out_of_memory": "killed for want of memory, by the counters of its cgroup or the kernel",
    "disk_full": "no space left on a disk",
    "bus_error": "SIGBUS: most often /dev/shm is too small",
    "shared_memory": "no room in /dev/shm, as a library says it",
    "import_error": "a module or a shared library that is not there",
    "port_in_use": "a port that another program has",
    "cuda_out_of_memory": "no memory left on a GPU",
    "cuda_error": "any other error of CUDA",
    "nccl_error": "an error of NCCL that is no lost peer and no timeout",
    "gloo_error": "Gloo could not connect the ranks",
    "peer_lost": "another rank's connection closed: a victim",
    "collective_timeout": "a collective that not all ranks came to",
    "rendezvous_timeout": "the ranks did not all meet at the start",
    "mpi_error": "an error of the MPI library",
    "mpi_abort": "a rank called MPI_Abort",
    "mpi_library": "the ranks' MPI library and the mpirun do not fit",
    "segmentation_fault": "SIGSEGV",
    "abort": "SIGABRT",
    "illegal_instruction": "SIGILL",
    "command_not_found": "a command that is not on PATH",
    "not_executable": "a file that cannot be run",
    "file_not_found": "a file that is not there",
    "permission_denied": "a file or port that the job may not use",
    "too_many_open_files": "the limit of open files was reached",
    "too_many_processes": "the limit of processes and threads was reached",
    "node_lost": "a node fell silent or was killed",
    "never_started": "a node never came",
    "ray_lost": "an actor, a task or a node of the job's Ray cluster was lost",
    "ray_missing": "a node did not join the job's Ray cluster",
    "ray_ended": "Ray ended on a node while the job ran",
    "unreachable": "nodes that cannot reach one another",
    "bootstrap_error": "nothing could be started: an input, the code, a launcher that is not available",
    "upload_failed": "all ranks have succeeded, and an output could not be copied to its object store",
    "preempted": "the scheduler took a node away",
    "no_progress": "`max_no_progress` attempts in a row reported no later step than before",
    "timeout": "`limits.timeout` has passed",
    "hang": "`limits.hang_timeout` has passed without output or work",
    "cancelled": "cancelled on request",
    "vanished": "a rank ended and nobody can say how",
    "unreported": "a rank that did not report its end",
}

#: Exit codes of a run that are not the culprit's own.
EXIT_CODES: Mapping[int, tuple[str, str]] = {
    0: ("Completed", "every rank has reported its end with code 0"),
    exit_codes.FAULT: ("Failed", "a fault of the bootstrap itself"),
    exit_codes.NO_PROGRESS: ("Failed", "restarts did not help: `max_no_progress` attempts in a row made no progress"),
    exit_codes.TIMED_OUT: ("TimedOut", "`limits.timeout` or `limits.hang_timeout` has passed"),
    exit_codes.LOST: ("Lost", "a node, or what supervised the run, was killed, fell silent or never came"),
    exit_codes.NOT_STARTED: (
        "Failed",
        "nothing could be started: an input that is not available, a launcher that is missing",
    ),
    exit_codes.CANCELED: ("Canceled", "on request"),
    exit_codes.PREEMPTED: ("Preempted", "the scheduler took a node away"),
}
#: Those of `jobsdk` itself, where there is no run whose code it could have.
COMMAND_CODES: Mapping[int, str] = {
    0: "done",
    1: "`doctor`, `compute check`: something is not well",
    2: "wrong usage, a job that is not valid, or what could not be done: stderr says which",
    exit_codes.TIMED_OUT: "`job wait --timeout`: the run had not ended by then",
    exit_codes.CANCELED: "Ctrl-C",
    141: "whoever read its output has gone, as for any program in a pipe",
}
