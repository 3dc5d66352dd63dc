"""Where things lie in a run's folder, as the processes of the job see them. Pure."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from . import stores

if TYPE_CHECKING:
    from .plan import Plan

_ARMED, _SHELL = "python-armed", "remote-shell"
_UNSAFE = re.compile(r"[^\w@%+=:,./-]", re.ASCII)


def safe_word(text: str) -> str:
    """`text` with every character that a shell could split or interpret replaced by `_`."""
    return _UNSAFE.sub("_", text)


def is_one_word(text: str) -> bool:
    """Whether a shell takes `text`, unquoted, as exactly one word."""
    return bool(text) and not _UNSAFE.search(text)


def is_remote(uri: str) -> bool:
    """Whether an input or output is a URI rather than a path of this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", uri) is not None


def stays_with_run(uri: Optional[str]) -> bool:
    """Whether an output is kept in the run's folder: it has no path, or one that only Azure ML can write."""
    return uri is None or (is_remote(uri) and stores.store_of(uri) is None)


def file_name(uri: str) -> str:
    """The last part of a path or URL, as one word."""
    return safe_word(os.path.basename(uri.split("?")[0].rstrip("/"))) or "file"


def input_folder(name: str, run_dir: str) -> str:
    """The folder or link that stands for one input."""
    return "%s/inputs/%s" % (run_dir, name)


def input_value(plan: Plan, name: str, run_dir: str) -> str:
    """What `${{inputs.name}}` stands for: the literal's text, or a path that is one word for a shell.

    A file keeps its own name (and so its suffix) inside a folder of the input's name. With the mode `direct` the URL of
    an object store stands for itself.
    """
    given = plan["inputs"][name]
    if "literal" in given:
        return str(given["literal"])
    if stores.is_passed_on(given):
        return str(given["uri"])
    folder = input_folder(name, run_dir)
    return "%s/%s" % (folder, file_name(str(given["uri"]))) if given["type"] == "uri_file" else folder


def output_folder(name: str, run_dir: str) -> str:
    return "%s/outputs/%s" % (run_dir, name)


def output_path(plan: Plan, name: str, run_dir: str) -> str:
    """What `${{outputs.name}}` stands for: a folder, or for type uri_file a file in it; where the engine has made a
    place for it (`at`), that one."""
    given, folder = plan["outputs"][name], output_folder(name, run_dir)
    if "at" in given:
        return str(given["at"])
    if stores.is_passed_on(given):
        return str(given["uri"])
    if given["type"] != "uri_file":
        return folder
    return "%s/%s" % (folder, file_name(str(given["uri"])) if given["uri"] else name)


def rendered(plan: Plan, run_dir: str) -> str:
    """The user's command with inputs and outputs put in as text, as Azure ML's service does it."""
    parts: List[Union[str, Dict[str, str]]] = plan["command"]
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif "input" in part:
            text += input_value(plan, part["input"], run_dir)
        else:
            text += output_path(plan, part["output"], run_dir)
    return text


def node_logs(run_dir: str, node_rank: int) -> str:
    return "%s/logs/node-%d" % (run_dir, node_rank)


def rank_log(run_dir: str, node_rank: int, rank: int, restart: int = 0) -> str:
    """The file that takes a rank's stdout and stderr; after the n-th restart of the job a file of its own."""
    return "%s/rank-%d%s.log" % (node_logs(run_dir, node_rank), rank, _after(restart))


def error_file(run_dir: str, node_rank: int, rank: int, restart: int = 0) -> str:
    """Where torch's `@record` decorator leaves a rank's exception."""
    return "%s/rank-%d%s.error.json" % (node_logs(run_dir, node_rank), rank, _after(restart))


def reports(run_dir: str, node_rank: int, rank: int, restart: int = 0) -> str:
    """What a rank reports of its progress, a JSON object a line: see `jobsdk.train`. It travels as logs do."""
    return "%s/reports-%d%s.log" % (node_logs(run_dir, node_rank), rank, _after(restart))


def world_of_one(run_dir: str, node_rank: int, rank: int, restart: int = 0) -> str:
    """Where a rank leaves the name of a library that saw a world of one process: see `hangs.armed.sitecustomize`."""
    return reports(run_dir, node_rank, rank, restart) + ".alone"


def python_note(run_dir: str, node_rank: int) -> str:
    """Where the first Python of a node's ranks leaves its executable, version and sys.path, with NULs between."""
    return "%s/python-node-%d" % (run_dir, node_rank)


def times(run_dir: str, node_rank: int, rank: int, restart: int = 0) -> str:
    """When a rank's log was how long: see `log_clock`."""
    return "%s/times-%d%s.log" % (node_logs(run_dir, node_rank), rank, _after(restart))


def result(run_dir: str, node_rank: int, rank: int, restart: int = 0) -> str:
    """What a rank's function has returned or raised: see `jobsdk.functions`. It travels as logs do."""
    return "%s/result-%d%s.log" % (node_logs(run_dir, node_rank), rank, _after(restart))


def launcher_log(run_dir: str, node_rank: int, restart: int = 0) -> str:
    """The output of mpirun or the deepspeed launcher itself."""
    return "%s/launcher%s.log" % (node_logs(run_dir, node_rank), _after(restart))


def ray_log(run_dir: str, node_rank: int, restart: int = 0) -> str:
    """The output of the node's `ray start`."""
    return "%s/ray%s.log" % (node_logs(run_dir, node_rank), _after(restart))


def preload_log(run_dir: str, node_rank: int, restart: int = 0) -> str:
    """What is written while the modules of `preload` are imported."""
    return "%s/preload%s.log" % (node_logs(run_dir, node_rank), _after(restart))


def _after(restart: int) -> str:
    return ".restart-%d" % restart if restart else ""


def armed(run_dir: str) -> str:
    """The folder on the ranks' PYTHONPATH that makes each Python able to say where it is."""
    return "%s/%s" % (run_dir, _ARMED)


def helpers(run_dir: str) -> str:
    """The last folder on the ranks' sys.path, with `jobsdk.train` for where jobsdk is not installed."""
    return run_dir + "/python-helpers"


def python_path(run_dir: str, given: str) -> str:
    """PYTHONPATH with that folder in front of what it is already. A job that was submitted by another job's rank gets
    its own alone; and in a run's folder with a colon in its name Python would find nothing."""
    entries = [entry for entry in given.split(":") if os.path.basename(entry) != _ARMED] if given else []
    return ":".join([armed(run_dir), *entries] if ":" not in run_dir else entries)


def cancel_mark(run_dir: str) -> str:
    """The file that says, where the job's nodes see the folder, that a SIGTERM to come is the user's own wish."""
    return run_dir + "/cancelled"


def handed_over_mark(run_dir: str) -> str:
    """The file that says that node 0 was taken away, and that the whole job is to be started again."""
    return run_dir + "/handed-over"


def tracking_folder(run_dir: str, rank: int) -> str:
    """The MLflow store that a rank writes into while the job runs; rank 0's is the run's own."""
    return "%s/%d" % (tracking_others(run_dir), rank) if rank else run_dir + "/mlruns"


def tracking_others(run_dir: str) -> str:
    """Where the ranks after the first have theirs."""
    return run_dir + "/mlruns-ranks"


def tracking_uri(run_dir: str, rank: int) -> str:
    """The same as MLflow takes it."""
    return "file://" + re.sub("[%?#]", lambda found: "%%%02X" % ord(found.group()), tracking_folder(run_dir, rank))


def deepspeed_config(config: Union[str, Dict[str, Any]], run_dir: str) -> str:
    """Where DeepSpeed's configuration is: its path inside the code, or the file that its content is written to."""
    return config if isinstance(config, str) else run_dir + "/deepspeed.json"


def hostfile(run_dir: str) -> str:
    """`host slots=n` lines, as Open MPI and DeepSpeed read them."""
    return run_dir + "/hostfile"


def machinefile(run_dir: str) -> str:
    """`host:n` lines, as Hydra reads them."""
    return run_dir + "/machinefile"


def shell(run_dir: str, node_rank: int) -> str:
    """The folder with a node's own `ssh` and `pdsh`, which lead to the job's other nodes."""
    return "%s/%s/node-%d" % (run_dir, _SHELL, node_rank)


def shell_path(run_dir: str, node_rank: int, given: str) -> str:
    """PATH with that folder in front of what it is already, but for another job's; without it in a run's folder with a
    colon in its name."""
    folder = shell(run_dir, node_rank)
    entries = [entry for entry in given.split(":") if not re.search("/%s/node-[0-9]+$" % _SHELL, entry)]
    return ":".join([folder, *entries] if ":" not in run_dir else entries)
