"""The file that the browser opens, so that no token is on its command line, which other users can read."""

from __future__ import annotations

import contextlib
import html
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jobsdk.home import home, make_folder


@contextlib.contextmanager
def entrance(address: str) -> Iterator[Path]:
    """A page that only its owner can read and that takes the browser on to `address`. It is deleted at the end.

    Its folder is below `JOBSDK_HOME`, as Jupyter's is below its data folder: a browser from a snap or flatpak has a
    temporary directory of its own.
    """
    folder = make_folder(home() / "runtime")
    folder.chmod(0o700)
    handle, name = tempfile.mkstemp(prefix="ui-", suffix=".html", dir=folder)  # of mode 0600
    path, to = Path(name), html.escape(address)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><title>jobsdk</title>\n'
                f'<meta http-equiv="refresh" content="0;url={to}">\n<p><a href="{to}">The page of jobsdk</a></p>\n'
            )
        yield path
    finally:
        path.unlink(missing_ok=True)
