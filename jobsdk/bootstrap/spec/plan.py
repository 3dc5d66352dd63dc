"""A run's plan, as JSON: plan.json. The reference of this format.

The SDK makes the plan from a job, and the bootstrap reads it on every node. Its size does not depend on the number of
ranks. Import it for annotations only (`if TYPE_CHECKING`): the bootstrap starts without it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict, Union


class DistributionPlan(TypedDict, total=False):
    """How the processes find each other. Every plan has `type` and `launcher`; the rest depends on the type."""

    #: `none`, `pytorch`, `tensorflow`, `mpi`, `deepspeed` or `ray`
    type: str
    #: what starts the ranks: `direct` (the bootstrap), `mpirun`, `openmpi`, `hydra` or `deepspeed`
    launcher: str
    #: processes of each node; not for TensorFlow
    processes: int
    #: processes of each node by its number, where they are not equally many
    per_node: List[int]
    #: TensorFlow: how many workers the job has, beside a chief
    workers: int
    #: TensorFlow: how many parameter servers the job has
    parameter_servers: int
    #: TensorFlow: whether one more process is the chief
    chief: bool
    #: DeepSpeed: a path of its configuration, or its content
    config: Union[str, Dict[str, Any]]
    #: DeepSpeed: `tune` or `run`, with its autotuner
    autotuning: str
    #: Ray: a cluster that runs already; without one, the job's nodes form a cluster
    address: str
    #: Ray: the port of the head
    port: int
    #: Ray: whether the head serves the dashboard
    include_dashboard: bool
    #: Ray: the port of the dashboard
    dashboard_port: int
    #: Ray: further arguments of `ray start` on the head's node
    head_node_additional_args: str
    #: Ray: further arguments of `ray start` on the other nodes
    worker_node_additional_args: str


class DataPlan(TypedDict, total=False):
    """An input or an output: either `literal`, or `type`, `mode` and `uri`."""

    #: the text of an input that is not data
    literal: str
    #: `uri_file`, `uri_folder` or another of Azure ML's types
    type: str
    #: how it reaches or leaves the node, such as `download`; None for the compute's usual way
    mode: Optional[str]
    #: a URI, or an absolute path of the submitter's machine; None for an output in the run's folder
    uri: Optional[str]
    #: where the engine has put an output on the node
    at: str


class RestartPlan(TypedDict):
    """When the job starts again after a failure."""

    #: restarts after failures, at most
    max: int
    #: restarts after nodes were taken away, at most
    max_preemptions: int
    #: attempts in a row that fail without progress, after which the job is not restarted; 0: no limit
    max_no_progress: int
    #: seconds before the first restart; each wait is twice as long as the one before. None: none, then from 1 s
    delay_s: Optional[float]
    #: exit codes, classes of failures and patterns of output that are restarted; empty: all that may pass
    retry_on: List[Union[int, str]]
    #: the same for those that are not restarted
    never_retry_on: List[Union[int, str]]


class NetworkPlan(TypedDict, total=False):
    """The compute's `network`."""

    #: the interface for TCP; several with commas
    interface: str
    #: whether InfiniBand may be used
    infiniband: bool
    #: names of InfiniBand devices
    ib_devices: List[str]
    #: whether GPUs exchange data with the network directly
    gdr: bool
    #: bytes of a packet
    mtu: int
    #: further variables
    variables: Dict[str, str]


class SecretParts(TypedDict, total=False):
    """secrets.json: the parts of a plan that are not true in plan.json; of `environment`, the secret variables."""

    display_name: str
    experiment: Optional[str]
    command: List[Union[str, Dict[str, str]]]
    environment: Dict[str, str]
    inputs: Dict[str, DataPlan]
    outputs: Dict[str, DataPlan]
    distribution: DistributionPlan
    code: str
    #: values that nothing that is written may hold
    secret_values: List[str]


class _Plan(TypedDict):
    #: the version of this format: 1
    plan: int
    #: the run's name
    run: str
    #: the run's name for people
    display_name: str
    #: the experiment that the run belongs to
    experiment: Optional[str]
    #: the user's command in parts: text, and `{"input": NAME}` or `{"output": NAME}` for a path
    command: List[Union[str, Dict[str, str]]]
    #: how many nodes the job has
    nodes: int
    #: how the processes find each other
    distribution: DistributionPlan
    #: the job's variables, without secrets
    environment: Dict[str, str]
    #: by name
    inputs: Dict[str, DataPlan]
    #: by name
    outputs: Dict[str, DataPlan]
    #: modules that one process imports before it forks the ranks
    preload: List[str]
    #: GPUs that each process takes, or a share of one; None where the job does not say
    gpus_per_process: Optional[float]
    #: seconds that the job may run, from its first start
    timeout_s: Optional[float]
    #: seconds without output and work after which the job has hung
    hang_timeout_s: Optional[float]
    #: seconds between SIGTERM and SIGKILL
    grace_s: float
    #: seconds that nodes wait for one another
    rendezvous_timeout_s: float
    #: seconds of silence after which a node counts as lost
    heartbeat_s: float
    #: when the job starts again
    restarts: RestartPlan


class Plan(_Plan, total=False):
    #: the URL of an object store with the job's code, which the nodes fetch
    code: str
    #: the compute's `network`
    network: NetworkPlan
    #: what `jobsdk compute check` measures; the ranks then run that instead of the command
    preflight: Dict[str, Any]
    #: names of variables that are secret
    secrets: List[str]
    #: seconds without output and work after which a job without `hang_timeout_s` gets a warning
    hang_warning_s: float
    #: keys of the plan whose true content is in secrets.json while the run needs it
    sealed: List[str]
    #: values that nothing that is written may hold; only in the plan as the nodes read it
    secret_values: List[str]
