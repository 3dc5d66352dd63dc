"""Rules on the files of a job."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from jobsdk import command
from tests.users import as_an_ordinary_user


def test_a_code_folder_that_cannot_be_read_is_named_and_not_its_script() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the tests' own folders are closed to others
        os.chmod(folder, 0o755)
        code = Path(folder) / "secret"
        code.mkdir()
        (code / "train.py").touch()
        job = command(command="python train.py", code=str(code))
        assert not job.findings()
        code.chmod(0o700 if os.geteuid() == 0 else 0)
        with as_an_ordinary_user():
            (found,) = job.findings()
        code.chmod(0o700)
    assert (found.path, found.message) == (("code",), f"the code folder '{code}' cannot be read")
    assert found.fix == "give yourself read access to it"
