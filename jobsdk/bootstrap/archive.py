"""Packing the bootstrap: one .pyz, the same bytes wherever and whenever it is built. Not part of the archive."""

from __future__ import annotations

import os
import sys
from typing import List

from .hangs import arming

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "jobsdk_bootstrap"
_MAIN = "import sys\nfrom %s.main import main\nsys.exit(main(sys.argv[1:]))\n" % _PACKAGE
#: What runs only where the package is installed, and types that only checkers read.
_LEFT_OUT = {
    "__main__.py",
    "archive.py",
    os.path.join("transport", "ssh_files.py"),
    os.path.join("coordinator", "job.py"),
    os.path.join("spec", "event.py"),
    os.path.join("spec", "messages.py"),
    os.path.join("spec", "plan.py"),
    os.path.join("spec", "preflight_messages.py"),
    os.path.join("spec", "report.py"),
    os.path.join("spec", "store_messages.py"),
}
#: What jobs bring for scripts to import, and where it is in the archive: see `arming`.
_HELPERS = os.path.join(os.path.dirname(_HERE), "train")


def build() -> bytes:
    """The archive's content: runs with `python job.pyz VERB ...` on Python 3.8 or later."""
    import io
    import zipfile

    sources = {"__main__.py": _MAIN.encode()}
    for folder, _, names in os.walk(_HERE):
        for path in (os.path.join(folder, name) for name in names if name.endswith(".py")):
            inside = os.path.relpath(path, _HERE)
            if inside not in _LEFT_OUT:
                with open(path, "rb") as file:
                    sources["%s/%s" % (_PACKAGE, inside)] = file.read()
    helpers = sorted(name for name in os.listdir(_HELPERS) if name.endswith(".py"))
    for name in helpers:
        with open(os.path.join(_HELPERS, name), "rb") as file:
            sources["%s/hangs/%s/%s" % (_PACKAGE, arming.HELPERS, name)] = file.read()
    sources["%s/hangs/%s/%s" % (_PACKAGE, arming.HELPERS, arming.LIST)] = "\n".join(helpers).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(sources):
            entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, sources[path])
    return buffer.getvalue()


def command(*arguments: str) -> List[str]:
    """How the SDK starts the bootstrap here: by this folder's own file, whose compiled neighbours make it start sooner.

    -S and -E: the bootstrap needs nothing from site-packages, and PYTHON* variables are meant for the ranks.
    """
    return [sys.executable, "-S", "-E", os.path.join(_HERE, "__main__.py"), *arguments]
