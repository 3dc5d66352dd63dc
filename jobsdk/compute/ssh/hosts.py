"""The machines of a compute of type `ssh`: their entries in computes.yml, and what is asked of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from jobsdk.bootstrap.agent import ssh_host as far_host
from jobsdk.compute.hosts.remote import RemoteHost
from jobsdk.compute.shipping import parcel
from jobsdk.compute.ssh import errors as ssh_errors
from jobsdk.errors import ComputeError

#: Runs the bootstrap that comes on stdin, of so many bytes, and leaves nothing behind.
_CARRIED = (
    "import sys,tempfile;sys.version_info<(3,8) and sys.exit(%r+sys.version.split()[0]);"
    "f=tempfile.NamedTemporaryFile(suffix='.pyz');f.write(sys.stdin.buffer.read(int(sys.argv.pop(1))));f.flush();"
    "sys.path.insert(0,f.name);from jobsdk_bootstrap.main import main;sys.exit(main(sys.argv[1:]))"
)


class Entry(NamedTuple):
    """One machine as it is configured. `gpus`: the ids of those that jobs may use; None: it is not said."""

    host: str
    gpus: list[str] | None
    address: str | None  # where the other machines reach it

    def to_dict(self) -> dict[str, Any]:
        return dict(self._asdict())


def entries(given: object, gpus_per_node: int | None) -> list[Entry]:
    """The machines of the setting `hosts`. Raises ComputeError that says what is wrong."""
    if not isinstance(given, list) or not given:
        raise ComputeError("hosts must be a list of machines, as in hosts: [gpu-a, user@gpu-b:2222]")
    found = [_entry(index, one, gpus_per_node) for index, one in enumerate(given)]
    twice = {one.host for one in found if sum(other.host == one.host for other in found) > 1}
    if twice:
        raise ComputeError(f"hosts has {', '.join(sorted(twice))} more than once")
    return found


def _entry(index: int, given: object, gpus_per_node: int | None) -> Entry:
    where = f"hosts[{index}]"
    if isinstance(given, str):
        given = {"host": given}
    if not isinstance(given, dict) or not isinstance(given.get("host"), str):
        raise ComputeError(f"{where} must be an address, or a mapping as {{host: gpu-a, gpus: 4}}")
    for key in given:
        if key not in Entry._fields:
            raise ComputeError(f"{where} has no {key!r}: it knows {', '.join(Entry._fields)}")
    RemoteHost(given["host"])  # raises
    address = given.get("address")
    if address is not None and not (isinstance(address, str) and address and not set(address) & set(" ,")):
        raise ComputeError(f"{where}.address must be a name or an IP address")
    return Entry(given["host"], _gpus(where, given.get("gpus", gpus_per_node)), address)


def _gpus(where: str, given: object) -> list[str] | None:
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return [str(gpu) for gpu in range(given)]
    if isinstance(given, list) and all(isinstance(gpu, int | str) and not isinstance(gpu, bool) for gpu in given):
        return [str(gpu) for gpu in given]
    raise ComputeError(f"{where}.gpus must be how many there are, or a list of their numbers or ids")


def ask(host: RemoteHost, operation: str, run_dir: str | None, timeout: float = 60.0, **given: Any) -> Any:
    """What an operation of `jobsdk.bootstrap.agent.ssh_host` answers there. Raises ComputeError.

    It is done by the bootstrap in `run_dir`, or where there is none (None) by one that is sent and leaves nothing.
    """
    data = json.dumps(given if run_dir is None else {"run_dir": run_dir, **given}).encode()
    if run_dir is None:
        whole = parcel.bootstrap()
        argv = [host.python, "-S", "-E", "-c", _CARRIED % ssh_errors.OLD_PYTHON, str(len(whole)), "host", operation]
        data = whole + data
    else:
        argv = parcel.command(host.python, run_dir, "host", operation)
    with host.start(argv) as session:
        out = session.communicate(data, timeout)
        _, found, line = out.partition(far_host.MARK)
        if not found:
            raise ssh_errors.of_python(host.name, host.python, session.answer())
    answer = json.loads(line.partition(b"\n")[0])
    if isinstance(answer, Mapping) and "error" in answer:
        raise ComputeError(f"{host.name}: {answer['error']}")
    return answer


def addresses(entry: Entry, host: RemoteHost, said: Mapping[str, Any]) -> list[str]:
    """Where the others may reach a machine, the likeliest first: every one is tried."""
    if entry.address is not None:
        return [entry.address]
    return list(dict.fromkeys((host.hostname(), said["node"], *said["addresses"])))
