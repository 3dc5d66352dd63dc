from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk.bootstrap.failures import tracebacks
from jobsdk.bootstrap.spec import exit_codes

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
    words = tracebacks.last_words(
        str(output_of("print('hello', flush=True)\nraise ValueError('boom')", tmp_path / "log"))
    )
    assert words["traceback"].startswith("Traceback (most recent call last):")
    assert words["error"] == "ValueError: boom"
    assert words["last_lines"][0] == "hello"


def test_of_chained_exceptions_the_last_counts_and_the_traceback_has_all(tmp_path: Path) -> None:
    words = tracebacks.last_words(str(output_of(CHAINED, tmp_path / "log")))
    assert words["error"] == "RuntimeError: second"
    assert words["traceback"].count("Traceback (most recent call last):") == 2
    assert "KeyError: 'a'\n\nThe above exception was the direct cause of" in words["traceback"]


def test_tracebacks_that_are_not_chained_are_two_stories(tmp_path: Path) -> None:
    code = (
        "import traceback\ntry: {}['a']\nexcept KeyError: traceback.print_exc()\nprint('on')\nraise ValueError('boom')"
    )
    words = tracebacks.last_words(str(output_of(code, tmp_path / "log")))
    assert words["error"] == "ValueError: boom"
    assert "KeyError" not in words["traceback"]


def test_a_traceback_that_a_launcher_has_indented(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('  Traceback (most recent call last):\n    File "x", line 1\n  OSError: gone\nafterwards\n')
    assert (
        tracebacks.last_words(str(log))["traceback"]
        == 'Traceback (most recent call last):\n  File "x", line 1\nOSError: gone'
    )


def test_a_traceback_that_torch_has_marked_with_its_rank(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('[rank3]: Traceback (most recent call last):\n[rank3]:   File "x"\n[rank3]: ValueError: 5\nbye\n')
    words = tracebacks.last_words(str(log))
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
    words = tracebacks.last_words(str(log))
    assert words["error"] == "ValueError: shapes differ"
    assert words["traceback"].endswith("\n\n    ValueError: shapes differ")


def test_a_traceback_behind_an_unfinished_line(tmp_path: Path) -> None:
    words = tracebacks.last_words(str(output_of("input('name? ')", tmp_path / "log")))
    assert words["error"] == "EOFError: EOF when reading a line"


def test_a_traceback_behind_a_line_of_a_megabyte(tmp_path: Path) -> None:
    code = "print('x' * (1 << 20), end='', flush=True); raise ValueError(5)"
    words = tracebacks.last_words(str(output_of(code, tmp_path / "log")))
    assert words["error"] == "ValueError: 5"


def test_progress_bars_binary_and_huge_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x\n" * 100_000 + b"10%\r20%\r30%\n\xff\xfe\n")
    words = tracebacks.last_words(str(log))
    assert words["traceback"] is None
    assert words["last_lines"][-2:] == ["30%", "\ufffd\ufffd"]
    assert len(words["last_lines"]) == 20


def test_no_log_at_all(tmp_path: Path) -> None:
    assert tracebacks.last_words(str(tmp_path / "none")) == {"traceback": None, "error": None, "last_lines": []}


@pytest.mark.parametrize(
    ("code", "signum", "words"),
    [(3, None, "exited with code 3"), (137, 9, "was killed by SIGKILL"), (200, 72, "was killed by signal 72")],
)
def test_exits_in_words(code: int, signum: int | None, words: str) -> None:
    assert exit_codes.describe(code, signum) == words


def test_of_silence_there_are_no_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n\n")
    assert tracebacks.last_words(str(tmp_path / "log"))["last_lines"] == []


# -- more than one exception -----------------------------------------------------------------------------------------


def test_a_group_of_exceptions_tells_what_it_holds() -> None:
    """As Python 3.11 writes it: its traceback is drawn with | and +, and holds others."""
    log = Path(__file__).parents[1] / "files/exception_group.txt"
    words = tracebacks.last_words(str(log))
    assert (
        words["error"]
        == "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ValueError: 1; ValueError: 2"
    )
    assert words["traceback"].startswith("  + Exception Group Traceback (most recent call last):")
    assert words["traceback"].endswith("    +------------------------------------")


def test_the_last_traceback_is_not_always_the_one_that_counts(tmp_path: Path) -> None:
    """What Python writes of a destructor or an exit handler ended nothing; a launcher's own tells of its child."""
    code = "class A:\n  def __del__(self): raise KeyError('late')\na = A()\nraise ValueError('boom')"
    assert tracebacks.last_words(str(output_of(code, tmp_path / "log")))["error"] == "ValueError: boom"
    code = "import atexit\natexit.register(lambda: {}['late'])\nraise ValueError('boom')"
    assert tracebacks.last_words(str(output_of(code, tmp_path / "log")))["error"] == "ValueError: boom"
    child = "import sys, subprocess; subprocess.run([sys.executable, '-c', 'raise ValueError(5)'], check=True)"
    assert tracebacks.last_words(str(output_of(child, tmp_path / "log")))["error"] == "ValueError: 5"


def test_torchruns_quotation_of_a_child(tmp_path: Path) -> None:
    """As torchrun of torch 2.13 writes it where the script has @record."""
    (tmp_path / "log").write_text(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\nRoot Cause (first observed failure):\n[0]:\n"
        "  error_file: /tmp/error.json\n  traceback : Traceback (most recent call last):\n"
        '    File "t.py", line 3, in main\n      raise ValueError("boom")\n  ValueError: boom\n  \n'
        "============================================================\n"
    )
    words = tracebacks.last_words(str(tmp_path / "log"))
    assert words["error"] == "ValueError: boom"
    assert words["traceback"].split("\n")[1] == '  File "t.py", line 3, in main'


# -- other ways to end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error", "begins"),
    [
        ("import os; os.kill(os.getpid(), 2); input()", "KeyboardInterrupt", "Traceback"),
        ("def f(:", "SyntaxError: invalid syntax", '  File "<string>", line 1'),
        ("import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)",
         "Fatal Python error: Segmentation fault", "Fatal Python error"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded", "Traceback"),
    ],
)  # fmt: skip
def test_errors_of_other_forms(tmp_path: Path, code: str, error: str, begins: str) -> None:
    words = tracebacks.last_words(str(output_of(code, tmp_path / "log")))
    assert words["error"] == error
    assert words["traceback"].startswith(begins)


def test_what_cpp_threw(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection closed by peer\n"
    )
    words = tracebacks.last_words(str(tmp_path / "log"))
    assert words["error"] == "gloo::IoException: Connection closed by peer"
    assert words["traceback"] is None


def test_a_python_exception_that_made_cpp_end_is_the_error(tmp_path: Path) -> None:
    log = output_of("raise ValueError('boom')", tmp_path / "log")
    with log.open("a") as file:
        file.write("terminate called after throwing an instance of 'c10::Error'\n  what():  late\n")
    assert tracebacks.last_words(str(log))["error"] == "ValueError: boom"


NCCL = """[rank0]: Traceback (most recent call last):
[rank0]:   File "t.py", line 9, in <module>
[rank0]:     dist.broadcast(x, 0)
[rank0]: torch.distributed.DistBackendError: NCCL error in: /torch/x.cpp:25, internal error, NCCL version 2.21.5
[rank0]: ncclInternalError: Internal check failed.
[rank0]: Last error:
[rank0]: Bootstrap : no socket interface found
"""


@pytest.mark.parametrize("prefix", ["[rank0]: ", ""])
def test_nccls_own_error_is_below_torchs(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "log").write_text(NCCL.replace("[rank0]: ", prefix) + "W1121 torch/x.py: closing\n")
    words = tracebacks.last_words(str(tmp_path / "log"))
    assert words["error"] == (
        "torch.distributed.DistBackendError: ncclInternalError: Internal check failed. Last error: Bootstrap : no"
        " socket interface found"
    )
    assert "closing" not in words["traceback"]


def test_what_tensorflow_says_below_graph_execution_error(tmp_path: Path) -> None:
    """As TensorFlow 2.21 writes it."""
    (tmp_path / "log").write_text(
        'Traceback (most recent call last):\n  File "t.py", line 12, in <module>\n    step()\n'
        "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:\n\n"
        'Detected at node CollectiveReduceV2 defined at (most recent call last):\n  File "t.py", line 10, in <module>\n'
        "\nCollective ops is aborted by: the tasks have crashed.\n\t [[{{node CollectiveReduceV2}}]]\n"
    )
    assert tracebacks.last_words(str(tmp_path / "log"))["error"] == (
        "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: the tasks have"
        " crashed."
    )


def test_other_threads_words_between_the_frames(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        'Traceback (most recent call last):\n[W1121 10:00] closing a socket\n  File "t.py", line 1\nValueError: 5\n'
    )
    assert tracebacks.last_words(str(tmp_path / "log"))["error"] == "ValueError: 5"


# -- output that is not kind -----------------------------------------------------------------------------------------


def test_colors_and_what_else_a_terminal_would_obey(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(
        b'\x1b[1;35mTraceback (most recent call last):\x1b[0m\n  File \x1b[35m"t.py"\x1b[0m, line 1\n'
        b"\x1b[1mValueError\x1b[0m: \x1b]0;title\x07bad\x00\x08\x9b2J\n"
    )
    words = tracebacks.last_words(str(tmp_path / "log"))
    assert words["error"] == "ValueError: bad\ufffd2J"
    assert words["traceback"].split("\n")[1] == '  File "t.py", line 1'


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    """A hole in a file reads as zeros; only its end is looked at."""
    with (tmp_path / "log").open("wb") as file:
        file.truncate(100 << 20)
        file.seek(0, 2)
        file.write(b"x" * (1 << 20) + b'\nTraceback (most recent call last):\n  File "t.py", line 1\nValueError: 5\n')
    words = tracebacks.last_words(str(tmp_path / "log"))
    assert words["error"] == "ValueError: 5"
    assert max(len(line) for line in words["last_lines"]) <= 300


def test_a_traceback_of_thousands_of_lines_keeps_its_end(tmp_path: Path) -> None:
    frames = "".join(f'  File "t.py", line {n}, in f\n    g()\n' for n in range(3000))
    (tmp_path / "log").write_text(f"Traceback (most recent call last):\n{frames}ValueError: 5\n")
    words = tracebacks.last_words(str(tmp_path / "log"))
    assert words["error"] == "ValueError: 5"
    assert words["traceback"].endswith("ValueError: 5")
    assert len(words["traceback"]) < 20_000


@pytest.mark.parametrize("text", ["\x1b", "\x1b[", "a\x1b]0;no end", "\x9b", "\u202e", "\x1b(B", "\x1bP\x1b\\"])
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert not set(tracebacks.plain(text + "z")) & set("\x1b\x9b\u202e\x07")
