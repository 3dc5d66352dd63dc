"""A kernel for the tests of notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel, jupyter_of_its_own


@pytest.fixture
def kernel(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A fresh kernel that works in `tmp_path`."""
    jupyter_of_its_own(home, monkeypatch)
    kernel = Kernel(str(tmp_path))
    yield kernel
    kernel.close()
