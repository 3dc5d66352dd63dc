"""What nodes know of each other once all have joined: addresses, ports, names."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union


class Facts(NamedTuple):
    """What is known only where the job runs; `explain` passes placeholders for what cannot be known before.

    `addresses` and `ports` have one entry for each node: its address, and the free ports that it offers, one for
    each of its processes. `cores` and `gpus` describe one node: usable cores (or words for them), and the ids of the
    visible GPUs (None: unknown). `inherited` is the environment that the processes start from. `run_dir` is the run's
    folder, and `io_dir` a name of it that is one word for a shell, through which inputs and outputs are named.
    `infiniband` is what `fabric.agree` came to, `ray` the folder of a Ray cluster that the nodes form.
    """

    addresses: Sequence[str]
    ports: Sequence[Sequence[Any]]
    host_list: str
    cores: Union[int, str, None]
    interface: Optional[str]
    gpus: Optional[Sequence[str]]
    inherited: Mapping[str, str]
    run_dir: str
    io_dir: str
    restart_count: int = 0
    infiniband: Union[str, Sequence[str], None] = None
    ray: Optional[str] = None


def endpoint(address: str, port: Any) -> str:
    """`host:port`, with IPv6 addresses in brackets."""
    return "[%s]:%s" % (address, port) if ":" in address else "%s:%s" % (address, port)
