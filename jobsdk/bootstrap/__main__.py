"""Runs this folder as a program: `python jobsdk/bootstrap/__main__.py VERB ...`."""

from __future__ import annotations

import importlib
import os
import sys

if __name__ == "__main__":
    # Started by path, the folder is no package yet; only for this import does its parent stand on sys.path.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    program = importlib.import_module(os.path.basename(here) + ".main")
    del sys.path[0]
    sys.exit(program.main(sys.argv[1:]))
