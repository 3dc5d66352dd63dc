from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk.bootstrap import failure

CHAINED = """
try:
    {}["a"]
except KeyError as error:
    raise RuntimeError("second\\nline two") from error
"""


def output_of(code: str, path: Path) -> Path:
    with path.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, check=False)
    return path


def test_the_last_traceback_of_a_real_crash(tmp_path: Path) -> None:
    words = failure.last_words(str(output_of("print('hello')\nraise ValueError('boom')", tmp_path / "log")))
    assert words["traceback"].startswith("Traceback (most recent call last):")
    assert words["error"] == "ValueError: boom"
    assert words["last_lines"][0] == "hello"


def test_of_chained_exceptions_the_last_counts(tmp_path: Path) -> None:
    words = failure.last_words(str(output_of(CHAINED, tmp_path / "log")))
    assert words["error"] == "RuntimeError: second"
    assert "KeyError" not in words["traceback"]


def test_a_traceback_that_a_launcher_has_indented(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('  Traceback (most recent call last):\n    File "x", line 1\n  OSError: gone\nafterwards\n')
    assert (
        failure.last_words(str(log))["traceback"]
        == 'Traceback (most recent call last):\n  File "x", line 1\nOSError: gone'
    )


def test_a_traceback_that_torch_has_marked_with_its_rank(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('[rank3]: Traceback (most recent call last):\n[rank3]:   File "x"\n[rank3]: ValueError: 5\nbye\n')
    words = failure.last_words(str(log))
    assert words["traceback"] == 'Traceback (most recent call last):\n  File "x"\nValueError: 5'
    assert words["error"] == "ValueError: 5"


def test_an_exception_inside_a_tf_function_is_the_one_that_it_quotes(tmp_path: Path) -> None:
    """As TensorFlow 2.21 writes it."""
    log = tmp_path / "log"
    log.write_text(
        'before\nTraceback (most recent call last):\n  File "t.py", line 5, in <module>\n    step(1)\n'
        'ValueError: in user code:\n\n    File "t.py", line 4, in step  *\n        raise ValueError("shapes")\n\n'
        "    ValueError: shapes differ\n\nafterwards\n"
    )
    words = failure.last_words(str(log))
    assert words["error"] == "ValueError: shapes differ"
    assert words["traceback"].endswith("\n\n    ValueError: shapes differ")


def test_a_traceback_behind_an_unfinished_line(tmp_path: Path) -> None:
    words = failure.last_words(str(output_of("input('name? ')", tmp_path / "log")))
    assert words["error"] == "EOFError: EOF when reading a line"


def test_progress_bars_binary_and_huge_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x\n" * 100_000 + b"10%\r20%\r30%\n\xff\xfe\n")
    words = failure.last_words(str(log))
    assert words["traceback"] is None
    assert words["last_lines"][-2:] == ["30%", "\ufffd\ufffd"]
    assert len(words["last_lines"]) == 20


def test_no_log_at_all(tmp_path: Path) -> None:
    assert failure.last_words(str(tmp_path / "none")) == {"traceback": None, "error": None, "last_lines": []}


def test_what_others_died_of_comes_before_what_they_say_of_it() -> None:
    victim = {"t": 1.0, "exit_code": 1, "error": "ConnectionResetError: [Errno 104] Connection reset by peer"}
    gloo = {"t": 1.1, "exit_code": 134, "error": None, "last_lines": ["what(): Connection closed by peer [::1]:9"]}
    silent = {"t": 1.2, "exit_code": 1, "error": None, "last_lines": []}
    culprit = {"t": 1.3, "exit_code": 3, "error": None, "last_lines": ["bye"]}
    another = {"t": 1.4, "exit_code": 1, "error": "ValueError: 5"}
    everyone = [victim, gloo, silent, culprit, another]
    assert sorted(everyone, key=failure.likelihood) == [culprit, another, silent, victim, gloo]


@pytest.mark.parametrize(
    ("code", "signum", "words"),
    [(3, None, "exited with code 3"), (137, 9, "was killed by SIGKILL"), (200, 72, "was killed by signal 72")],
)
def test_exits_in_words(code: int, signum: int | None, words: str) -> None:
    assert failure.describe(code, signum) == words


def test_of_silence_there_are_no_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n\n")
    assert failure.last_words(str(tmp_path / "log"))["last_lines"] == []
