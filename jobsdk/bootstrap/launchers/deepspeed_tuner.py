"""DeepSpeed's autotuner, as the one process of its job: it starts the processes of its trials by itself.

Its exit code does not tell how it went: it is 0 when no trial could run, and with `--autotuning run` whatever becomes
of the training that follows, which moreover stops after the few steps of a trial. So the search counts by the
configuration that it leaves, and the training is started here.
"""

from __future__ import annotations

import base64
import glob
import importlib
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, List

from ..failures import tracebacks
from . import base, deepspeed

#: A command that the autotuner can start: one program, which is Python with a script.
_PYTHON_SCRIPT = re.compile(r"\s*(?:[A-Za-z_]\w*=\S*\s+)*\S*?python[0-9.]*(?=\s+(?:-u\s+)?[^-\s])")
#: Where the autotuner writes unless its configuration says where: what is in ./outputs is kept.
_FOLDERS = {"exps_dir": "outputs/autotuning_exps", "results_dir": "outputs/autotuning_results"}

#: Of MLflow's variables, which DeepSpeed hands on in words, those that are no secrets.
_PUBLIC = frozenset(("MLFLOW_TRACKING_URI",))


class TunerError(Exception):
    """The search cannot begin, or has found nothing."""


def fits(command: str) -> bool:
    """Whether the autotuner can run the command's script."""
    return _PYTHON_SCRIPT.match(command) is not None


class Tuner(base.Launcher):
    """The job's one process is the tuner, which the bootstrap starts."""

    can_fork = False

    def rank_command(self, rendered: str) -> str:
        """The user's command with this module put in front of its script; the shell works out the rest as usual."""
        found = _PYTHON_SCRIPT.match(rendered)
        if found is None:
            raise OSError("DeepSpeed's autotuner needs a command of the form 'python script.py ...'")
        rest = re.sub(r"^\s+-u\s+", " ", rendered[found.end() :])
        program = "'%s'" % os.path.abspath(sys.argv[0]).replace("'", "'\\''")
        return "%s %s tuner %s %s" % (found[0], program, self.plan["distribution"]["autotuning"], rest.lstrip())


def run(words: List[str]) -> int:
    """Search, and with the mode `run` train with what was found; returns that training's exit code.

    `words`: the mode (tune or run), the script, and its arguments.

    Raises TunerError: the job's report says its text.
    """
    mode, argv = words[0], _split_options(words[1:])
    place = _config_place(argv)
    with open(argv[place], encoding="utf-8-sig") as file:
        config = deepspeed.parse_config(file.read())
    settings = dict(_FOLDERS, **config.get("autotuning") or {})
    settings["enabled"] = True
    argv[place] = os.environ["JOBSDK_RUN_DIR"] + "/deepspeed-autotuning.json"
    with open(argv[place], "w", encoding="utf-8") as file:
        json.dump(dict(config, autotuning=settings), file)

    best = os.path.join(settings["results_dir"], "ds_config_optimal.json")
    if os.path.exists(best):  # of an earlier search
        os.unlink(best)
    _search(argv)
    if not os.path.exists(best):
        last = _last_trial(settings["results_dir"])
        raise TunerError("DeepSpeed's autotuner found no configuration that runs" + last)
    print("the best configuration is in %s" % best, flush=True)
    return _train(argv, place, best, settings) if mode == "run" else 0


def _search(argv: List[str]) -> None:
    """Run DeepSpeed's launcher in this process, as its own script does."""
    # Where it finds mlflow it asks for a run, and ends that; it is the job's own.
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    runner: Any = importlib.import_module("deepspeed.launcher.runner")
    # After each trial it would end by `pkill -f` what is left of it on its nodes, where others may have the same name;
    # what a command of the job's own ssh has started ends with it.
    scheduler: Any = importlib.import_module("deepspeed.autotuning.scheduler")
    scheduler.clean_up = lambda *_: None
    scheduler.TIMEOUT = 0.5  # seconds between two looks at a trial; 5 would be lost at every one, twice
    if _spans():  # what the other nodes need of these they have; it would stand on command lines
        for name in [name for name in os.environ if name.startswith("MLFLOW_TRACKING_") and name not in _PUBLIC]:
            del os.environ[name]
        options = ["--hostfile", os.environ["JOBSDK_HOSTFILE"], "--master_addr", os.environ["MASTER_ADDR"]]
    else:  # no hostfile: with one, the launcher and those of the trials ask for ssh even to their own machine
        options = ["--hostfile", os.devnull, "--num_gpus", os.environ["LOCAL_SIZE"]]
    runner.main([*options, "--autotuning", "tune", "--master_port", os.environ["MASTER_PORT"], *argv])


def _spans() -> bool:
    """Whether there are several nodes: the launcher then reaches them by the job's own ssh and pdsh."""
    return int(os.environ["NODE_COUNT"]) > 1


def _train(argv: List[str], place: int, best: str, settings: Dict[str, Any]) -> int:
    """Train with the best configuration, by the launcher; on one node by the part of it that starts its processes."""
    with open(best, encoding="utf-8") as file:
        found = json.load(file)
    argv[place] = best
    if _spans():  # in words, as the trials have it: the other nodes may have no such file
        argv[place] = base64.urlsafe_b64encode(json.dumps(found).encode()).decode()
    for key, option in (settings.get("arg_mappings") or {}).items():  # as for the trials
        if key in found and option in argv:
            argv[argv.index(option) + 1] = str(found[key])
    port = ["--master_port", os.environ["MASTER_PORT"]]
    if _spans():
        nodes = ["--hostfile", os.environ["JOBSDK_HOSTFILE"], "--master_addr", os.environ["MASTER_ADDR"]]
        code = subprocess.call([sys.executable, "-u", "-m", "deepspeed.launcher.runner", *nodes, *port, *argv])
        return code if code >= 0 else 128 - code
    world = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(int(os.environ["LOCAL_SIZE"])))}).encode())
    options = ["--world_info", world.decode(), *port]
    code = subprocess.call([sys.executable, "-u", "-m", "deepspeed.launcher.launch", *options, *argv])
    return code if code >= 0 else 128 - code


def _split_options(argv: List[str]) -> List[str]:
    """`--deepspeed_config=FILE` as two words: the autotuner looks for nothing else."""
    return [word for given in argv for word in re.sub(r"^(--deepspeed(?:_config)?)=", "\\1\0", given).split("\0")]


def _config_place(argv: List[str]) -> int:
    """Where among the words the configuration is named; transformers names it with `--deepspeed`."""
    for option in ("--deepspeed_config", "--deepspeed"):
        if option in argv[:-1] and (place := argv.index(option) + 1) and argv[place].endswith(".json"):
            return place
    raise TunerError("the command names no configuration: add --deepspeed_config FILE.json")


def _last_trial(results: str) -> str:
    """What the last trial died of, and where it says so."""
    logs = sorted(glob.glob(os.path.join(glob.escape(results), "*", "stderr.log")), key=os.path.getmtime)
    return "; the last trial (%s): %s" % (logs[-1], tracebacks.last_words(logs[-1])["error"]) if logs else ""
