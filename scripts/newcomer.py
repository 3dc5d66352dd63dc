"""The README as a newcomer follows it, timed: a fresh clone, `make demo`, then every command of its blocks in order.

    python scripts/newcomer.py [--pip-args ARGS]   # with the packages that pip has to download: minutes
    python scripts/newcomer.py --here              # without clone and `make demo`, in this Python's environment

Prints the seconds of each command. The exit code is 1 if a command fails or does not show what it should.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FIRST = "make demo"
_PAGE = "jobsdk ui"
_RANKS = [f"rank {rank} of 4 on node {rank // 2}" for rank in range(4)]


def commands() -> Iterator[tuple[str, int]]:
    """The commands of the README's blocks of shell, in order, with the exit code that a comment promises for each.

    A here-document belongs to its command.
    """
    for block in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL):
        for found in re.finditer(r"^(?:.*<<'(\w+)'\n(?:.*\n)*?\1|.+)$", block, re.MULTILINE):
            command, _, comment = (found[0], "", "") if found[1] else found[0].partition("  #")
            promised = re.match(r" exit code (\d+)", comment)
            yield command.rstrip(), int(promised[1]) if promised else 0


def script() -> str:
    """A bash script that runs them, each after a line that tells the time. The page is ended once it has answered."""
    parts = []
    for command, code in commands():
        name = command.splitlines()[0]
        if command.startswith(_PAGE):
            command = shlex.join([sys.executable, str(Path(__file__).resolve()), "--page", command])
        if code:
            command = f"code=0; {command} || code=$?; [ $code = {code} ]"
        parts.append(f'printf "\\0%s %s\\n" "$EPOCHREALTIME" {shlex.quote(name)}\n{command}\n')
    return "".join(parts) + 'printf "\\0%s\\n" "$EPOCHREALTIME"\n'


def follow(folder: Path, environ: dict[str, str]) -> None:
    """Run the script in `folder`, print what each command took, and check what the ranks printed."""
    argv = ["bash", "-ec", script()]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    steps = [step.partition("\n") for step in done.stdout.split("\0")[1:]]
    for (head, _, _), (after, _, _) in itertools.pairwise(steps):
        began, _, name = head.partition(" ")
        print(f"{float(after.partition(' ')[0]) - float(began):8.1f} s  {name}", flush=True)
    if done.returncode:
        head, _, output = steps[-1]
        raise SystemExit(f"{head.partition(' ')[2]}: exit code {done.returncode}\n{output}{done.stderr}")
    for name in ("jobsdk run", "jobsdk job create", "python submit.py"):
        outputs = [output for head, _, output in steps if f" {name}" in head]
        assert outputs, name
        for shown in outputs:
            if missing := [text for text in _RANKS if text not in shown]:
                raise SystemExit(f"{name} does not show: {missing}\n{shown}")


def look_at_page(command: str) -> int:
    """Run the command, fetch the page at the address that it prints, and end it by Ctrl-C."""
    environ = {**os.environ, "BROWSER": "true"}  # what opens a browser does nothing
    server = subprocess.Popen(shlex.split(command), env=environ, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = next((found[0] for line in server.stdout if (found := re.search(r"http://127\S+", line))), None)
        if address is None:
            print(f"{command} shows no address")
            return 1
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=60) as page:
            print(page.status, page.headers["Content-Type"])
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(60)
    return code if code != 130 else 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--here", action="store_true", help="without clone and make demo, in this environment")
    options.add_argument("--pip-args", default="", help="for pip, as PIP_ARGS of the Makefile")
    options.add_argument("--page", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.page:
        raise SystemExit(look_at_page(chosen.page))
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder = Path(name)
        environ = {**os.environ, "JOBSDK_HOME": f"{name}/home", "PIP_ARGS": chosen.pip_args}
        for variable in ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"):
            environ.pop(variable, None)
        began = time.monotonic()
        if chosen.here:
            (folder / ".venv").symlink_to(sys.prefix)
        else:
            subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder / "clone"], check=True)
            folder /= "clone"
            subprocess.run(shlex.split(_FIRST), cwd=folder, env=environ, check=True)
            print(f"{time.monotonic() - began:8.1f} s  git clone, {_FIRST}", flush=True)
        if not re.search(rf"^    {_FIRST}\b", (ROOT / "README.md").read_text(), re.MULTILINE):
            raise SystemExit(f"README.md does not show {_FIRST}")
        follow(folder, environ)
        print(f"{time.monotonic() - began:8.1f} s  in all")


if __name__ == "__main__":
    main()
