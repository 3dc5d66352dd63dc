"""What DeepSpeed compiles when it is first used."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

_COMPILE = "from deepspeed.comm.torch import build_shm_op; assert build_shm_op() is not None"


@functools.lru_cache
def compiled() -> str:
    """The folder of it, when all is there: what ended while it is made would leave a lock that others wait on."""
    here = os.path.dirname(sys.executable)  # of ninja
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PATH": here + os.pathsep + os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", _COMPILE], env=environment, check=True)
    return os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
