"""Draws docs/assets/failure.svg: what the README's script prints when it fails, from a real run.

python scripts/picture.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/assets/failure.svg"
_WIDTH, _LINE = 960, 20
_CHROME = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} HEIGHT" role="img">
<style>
text {{ font: 13px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9;
  white-space: pre }}
.command {{ fill: #7ee787 }} .error {{ fill: #ff7b72; font-weight: bold }} .rank {{ fill: #8b949e }}
</style>
<rect width="{_WIDTH - 1}" height="BOX" x=".5" y=".5" rx="8" fill="#0d1117" stroke="#6e7681"/>
<circle cx="20" cy="18" r="5" fill="#ff5f56"/><circle cx="38" cy="18" r="5" fill="#ffbd2e"/>
<circle cx="56" cy="18" r="5" fill="#27c93f"/>
"""


def shown() -> list[str]:
    """The command and what it prints, with the paths of a reader."""
    readme = (ROOT / "README.md").read_text()
    script = re.findall(r"^cat >train.py <<'END'\n(.*?)^END$", readme, re.MULTILINE | re.DOTALL)[0]
    command = re.findall(r"^(jobsdk run .*?)  +# exit code 1", readme, re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "first"
        folder.mkdir()
        (folder / "train.py").write_text(script)
        environ = {**os.environ, "JOBSDK_HOME": f"{name}/home", "NO_COLOR": "1"}
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        done = subprocess.run(command, shell=True, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 1:
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        ranks = sorted(line for line in done.stdout.splitlines() if re.search(r"\] rank \d", line))
        lines = [f"$ {command}", *ranks, *done.stderr.splitlines()]
        for path, seen in ((f"{name}/home", "~/.local/share/jobsdk"), (str(folder), "/home/me/first")):
            lines = [line.replace(path, seen) for line in lines]
        return [re.sub(rf"\({re.escape(os.uname().nodename)}\)", "(laptop)", line) for line in lines]


def drawing(lines: list[str]) -> str:
    parts = []
    for number, line in enumerate(lines):
        kind = "command" if line.startswith("$") else "error" if line.startswith("error:") else "rank"
        cls = f' class="{kind}"' if kind != "rank" or line.startswith("[rank") else ""
        parts.append(
            f'<text x="16" y="{52 + number * _LINE}"{cls} xml:space="preserve">{escape(line, quote=False)}</text>'
        )
    height = 52 + len(lines) * _LINE
    return _CHROME.replace("HEIGHT", str(height)).replace("BOX", str(height - 1)) + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing(shown()))
