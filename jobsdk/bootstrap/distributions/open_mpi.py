"""Variables of Open MPI, in the words of its release 4 (OMPI_MCA_*) and of the daemons of 5 (PRTE_MCA_*). Pure."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence

from ..system import network

#: `ssh` by a name that nothing else on PATH has: a daemon's own begins as mpirun thinks fit.
SSH = "jobsdk-ssh"
#: Containers run as root, and Open MPI wants both to believe that this is meant.
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
#: The nodes are the hostfile's, also where the job is inside an allocation.
NO_SCHEDULERS = dict.fromkeys(("OMPI_MCA_ras", "PRTE_MCA_ras"), "^slurm,tm,lsf,gridengine,alps")


def own_files(folder: str, given: Mapping[str, str], daemon: bool = False) -> Dict[str, str]:
    """Where release 5's mpirun, or a `daemon` of it, keeps its own files; nothing where that is set in `given`.

    By itself it takes a folder of /tmp with its process's number in its name. What was killed leaves it there, and
    mpirun ends at once with "listener thread failed to start" when the kernel gives that number again.
    """
    if any(name.startswith("PRTE_MCA_prte_") and name.endswith("tmpdir_base") for name in given):
        return {}
    # The two names tell them apart: mpirun passes on what it is told, and its daemons prefer that to their own.
    return {"PRTE_MCA_prte_%s_tmpdir_base" % ("remote" if daemon else "local"): folder}


def settings(addresses: Sequence[str], given: Mapping[str, str], interface: Optional[str] = None) -> Dict[str, str]:
    """How it starts its daemons on the job's nodes; what is set in `given` stays as it is.

    They stay in the foreground, so that they end with who started them; no more than "num_concurrent" can be started
    then (a crash of Open MPI 4). They talk by `interface`, if the compute names one, or the network that the nodes
    have in common.
    """
    nodes = str(len(addresses))
    chosen = {
        "OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": SSH, "OMPI_MCA_plm_rsh_num_concurrent": nodes,
        "PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": SSH, "PRTE_MCA_plm_ssh_num_concurrent": nodes,
        "OMPI_MCA_orte_leave_session_attached": "1", "PRTE_MCA_prte_leave_session_attached": "1",
        **NO_SCHEDULERS,
    }  # fmt: skip
    subnet = interface or network.common_subnet(addresses)
    if subnet is not None:
        chosen["OMPI_MCA_oob_tcp_if_include"] = chosen["OMPI_MCA_btl_tcp_if_include"] = subnet
        by_loopback = interface == "lo" if interface else network.is_loopback(addresses[0])
        if not by_loopback:  # which 5's daemons refuse
            chosen["PRTE_MCA_prte_if_include"] = subnet
    is_given = {*given}.intersection
    return {name: value for name, value in chosen.items() if not is_given((name, name.replace("include", "exclude")))}
