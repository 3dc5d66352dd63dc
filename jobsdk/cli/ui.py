"""`jobsdk ui`."""

from __future__ import annotations

import os
import sys

import click


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: a free one]")
@click.option("--open/--no-open", "opens", default=True, show_default=True, help="Open the page in a browser.")
def ui(port: int, opens: bool) -> None:
    """Show all runs on a local web page, until Ctrl-C.

    The page listens on 127.0.0.1 only, and its address holds a token: keep it to yourself.
    """
    from jobsdk.errors import JobsdkError
    from jobsdk.installation import install_command

    try:
        from jobsdk.ui.serving import serve
    except ImportError as error:
        raise JobsdkError(f"the page cannot be shown: {error}. Fix: {install_command('ui')}") from None

    def open_browser(address: str) -> None:
        import threading
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve(port, click.echo, open_browser if opens and _has_display() else None)


def _has_display() -> bool:
    """Whether a browser would open in a window, and not take over the terminal."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform != "linux" or any(os.environ.get(name) for name in names)
