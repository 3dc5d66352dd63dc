"""What functions are called in messages."""

from __future__ import annotations

import functools
from typing import Any

_MOST = 100  # characters


def name_of(function: Any) -> str:
    """`train`, `Trainer.fit`, `<lambda>`; of a partial its function's, of an object that can be called its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__qualname__
    return str(name).replace("<locals>.", "")[:_MOST]
