"""Leaves how many threads torch uses, then is the script that its first argument names."""

import os
import runpy
import sys
from pathlib import Path

import torch

del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
Path(os.environ["BENCHMARK_FOLDER"], "threads").write_text(str(torch.get_num_threads()))
runpy.run_path(sys.argv[0], run_name="__main__")
