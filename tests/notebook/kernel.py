"""A live Jupyter kernel, spoken to as a notebook's page does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

Message = dict[str, Any]
PATIENCE = 200.0  # seconds without any message from the kernel, after which it is taken for stuck


def jupyter_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are started from now on ignore the user's Jupyter and IPython configuration."""
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))


class Kernel:
    """Runs cells one after the other, and gives what comes back while they run."""

    def __init__(self, folder: str) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=folder)
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def run(self, code: str, during: Callable[[str], None] | None = None) -> Cell:
        """Run a cell; `during` is given each piece of its printed output as it arrives."""
        asked = self.client.execute(code)
        cell = Cell()
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
                if during is not None:
                    during(content["text"])
            elif kind == "display_data":
                cell.displayed.append(content["data"].get("text/html", ""))
                cell.display_ids.append(content.get("transient", {}).get("display_id", ""))
            elif kind == "execute_result":
                cell.result = content["data"]["text/plain"]
                cell.html = content["data"].get("text/html", "")
            elif kind == "error":
                cell.error, cell.traceback = content["ename"], "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return cell

    def until_update(self, display_id: str, is_last: Callable[[str], Any]) -> None:
        """Take what changes in something displayed, whichever cell has come to its end, until `is_last` of it."""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            content = message["content"]
            is_it = message["msg_type"] == "update_display_data" and content["transient"]["display_id"] == display_id
            if is_it and is_last(content["data"]["text/html"]):
                return

    def interrupt(self) -> None:
        """What the page's stop button does."""
        self.manager.interrupt_kernel()

    def restart(self, now: bool) -> None:
        """What the page's restart button does, or with `now` a kernel's sudden death."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=now)
        self._connect()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


class Cell:
    """What a cell has shown."""

    def __init__(self) -> None:
        self.stdout = self.stderr = ""
        self.result: str | None = None
        self.html = ""  # the result's
        self.error: str | None = None
        self.traceback = ""
        self.displayed: list[str] = []  # what was displayed, as HTML
        self.display_ids: list[str] = []
