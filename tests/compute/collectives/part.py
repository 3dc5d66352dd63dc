"""What the scripts of this folder have in common."""

from __future__ import annotations

import json
import os


def show_environment() -> None:
    print("environ", json.dumps(dict(os.environ)), flush=True)


def say(total: float) -> None:
    """Tell the sum over all ranks."""
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} total {total:g}", flush=True)


def end() -> None:
    """End at once: gloo's threads now and then abort a process that ends in order (pytorch issue 190489)."""
    os._exit(0)
