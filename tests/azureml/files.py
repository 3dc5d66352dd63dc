"""The job files of the tests: this repository's own, and others' where a corpus of them is at hand."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CORPUS = Path(os.environ.get("JOBSDK_CORPUS") or ROOT.parent / "shared" / "corpus").resolve()


def _jobs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.y*ml") if "command:" in path.read_text(errors="replace"))


OWN_JOBS = _jobs(HERE / "jobs")
OTHERS = _jobs(CORPUS)
SPECS = sorted((ROOT / "job_specs").glob("*.yml"))

#: Files of others that azure-ai-ml does not load: templates with placeholders in them.
_TEMPLATES = ("nebulaml/cifar10_deepspeed/job.yml", "java/iris/job-template.yml")


def is_template(path: Path) -> bool:
    return path.as_posix().endswith(_TEMPLATES)


def name(path: Path) -> str:
    """What a test with the file is called."""
    return "/".join(path.parts[-3:])
