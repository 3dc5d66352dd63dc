"""{pytorch, tensorflow, mpi, deepspeed} x {1, 2 pods without ssh}: a real collective in every cell."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.compute import collectives
from tests.compute.kubernetes.cluster import Cluster
from tests.compute.kubernetes.conftest import PATH, PYTHON, Configure

_BUILD = "get_accelerator().create_op_builder('ShareMemCommBuilder').load(verbose=False)"
#: The image has no compiler. What was compiled here is taken as up to date where the compiler's headers are.
_HEADERS = [{"mount": path, "host_path": path, "read_only": True} for path in ("/usr/include", "/usr/lib/gcc")]


@functools.lru_cache
def _extensions() -> dict[str, Any]:
    """The folder of what DeepSpeed compiles when it is first used."""
    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    code = f"from deepspeed.accelerator import get_accelerator; import deepspeed; {_BUILD}"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=True)
    return {"mount": folder, "host_path": folder}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", collectives.DISTRIBUTIONS)
def test_all_ranks_add_up(kind: str, nodes: int, cluster: Cluster, configure: Configure) -> None:
    if kind == "deepspeed":
        given = {name: os.environ[name] for name in ("HOME", "TORCH_EXTENSIONS_DIR") if name in os.environ}
        configure(cluster, volumes=[*PYTHON, *_HEADERS, _extensions()], env={"PATH": PATH, **given})
    collectives.check(collectives.job(kind, nodes, "cluster"))
