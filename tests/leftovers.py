"""A folder for temporary files for each session of tests, which must be empty of certain files when the session ends.

Each test has such a folder too (`home` in conftest.py). This one is for what modules and sessions share: clusters,
servers, and libraries that read TMPDIR once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

#: Of jobsdk, Open MPI, torchrun and TensorFlow's AutoGraph. Nobody else would remove them.
_FORBIDDEN = ("jobsdk-*", "ompi.*", "prte.*", "torchelastic_*", "__autograph_*")


class SessionFolder:
    """A plugin of the process that the user starts; xdist's workers inherit its TMPDIR."""

    def __init__(self) -> None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # for the folders that pytest keeps
        self._folder = Path(tempfile.mkdtemp(prefix="tests-of-jobsdk-"))
        os.environ["TMPDIR"] = str(self._folder)
        tempfile.tempdir = None  # it is looked up anew
        self._left: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._left = sorted(path.name for pattern in _FORBIDDEN for path in self._folder.glob(pattern))
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._left:
            terminalreporter.write_line(f"The tests left a temporary file: {name}")

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
