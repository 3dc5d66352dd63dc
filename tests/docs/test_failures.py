"""What the page of failures shows, done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import snippets
from tests.docs.test_snippets import shell


def test_what_the_page_of_failures_shows(tmp_path: Path) -> None:
    (fields,) = snippets("yaml", "docs/failures.md")
    (tmp_path / "again.yml").write_text("command: exit 3\nname: again\n" + fields.text)
    done = shell("jobsdk job validate -f again.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "again.yml: valid\n"
    done = shell("jobsdk job create -f again.yml --wait", tmp_path)  # 3 is not in its retry_on
    assert done.returncode == 3
    assert "nothing in retry_on fits it" in done.stderr
    code = next(one.text for one in snippets("python", "docs/failures.md") if "JobFailed" in one.text)
    code = "from jobsdk import MLClient\nrun = MLClient().jobs.get('again')\n" + code
    code = code.replace("failed.report[", "print(failed.report[", 1).replace('["class"]', '["class"])', 1)
    kind = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert kind.stdout == "exit\n", kind.stderr
    stacks = shell("jobsdk job stacks again", tmp_path)
    assert stacks.returncode == 2
    assert "has ended" in stacks.stderr
