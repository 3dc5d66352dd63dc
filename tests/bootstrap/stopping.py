"""Random jobs, ended in a random way at a random moment: nothing of them may be left.

    python -m tests.bootstrap.stopping --trials 1000 --seed 1

Each rank has a random tree of processes: children, orphans, sessions of their own, cleaned environments, pipelines,
some that ignore SIGTERM, that stop themselves, or that start others while they are being ended.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pty
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jobsdk.runs.folder import RunFolder
from tests.bootstrap.runs import LocalRun, plan, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]

#: A process that is another one every so many seconds, and answers to no SIGTERM. It ends by itself in a minute.
HOPPING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    time.sleep(float(sys.argv[1]))
"""


class Trial(NamedTuple):
    """What is run, how it is ended, and when. `delay` counts from the moment that all that is needed is there."""

    number: str  # "seed/number", to run it again
    mark: str  # an argument of every process; no other run's
    texts: Sequence[str]  # what each rank runs under bash
    way: str
    victim: int  # the node or the rank that is ended, where the way is of that kind
    delay: float  # seconds
    grace: float  # seconds

    @property
    def command(self) -> str:
        branches = "".join(f"{rank}) {text};; " for rank, text in enumerate(self.texts))
        return f"case $RANK in {branches}esac"


def trial(seed: int, number: int) -> Trial:
    """The same seed and number give the same trial."""
    dice = random.Random(f"{seed}/{number}")
    way = list(WAYS)[number % len(WAYS)]
    # A number of seconds that `sleep` takes, and that nothing else on this machine has as its argument.
    mark = f"{dice.randrange(600, 700)}.{os.getpid():07d}{seed % 10000:04d}{number:05d}"
    tree = _Tree(dice, mark, clean=way != "everybody killed")
    texts, victim = [tree.rank() for _ in range(4)], dice.randrange(4)
    delay, grace = dice.uniform(0.0, 0.4), dice.uniform(0.2, 0.5)
    if way == "a rank fails":
        texts[victim] = f"{tree.children(1)} sleep {delay:.3f}; {dice.choice(['exit 7', 'kill -9 $$'])}"
    if way.endswith("to a bootstrap"):  # the loss of one whose ranks have all ended would be no reason to end
        texts[victim % 2 * 2] = f"{tree.children(1)} sleep {mark}"
    return Trial(f"{seed}/{number}", mark, texts, way, victim, delay, grace)


class _Tree:
    """Shell text for random trees of processes. `clean`: some have none of the environment that they inherited."""

    def __init__(self, dice: random.Random, mark: str, clean: bool) -> None:
        self._dice = dice
        self._mark = mark
        self._clean = clean

    def rank(self) -> str:
        return f"{self.children(2)} {self._last()}"

    def children(self, depth: int) -> str:
        """Some that go on in the background, as children or as orphans."""
        forms = ("{} & ", "({} & ) ; ", "nohup {} >/dev/null & ", "{} | cat & ", "setsid {} & ", "setsid -f {} ; ")
        count = self._dice.randrange(3)
        return "".join(self._dice.choice(forms).format(shlex.join(self._argv(depth))) for _ in range(count))

    def _argv(self, depth: int) -> list[str]:
        """A command that goes on for as long as it is let."""
        around = [[], ["setsid"], ["nohup"], ["timeout", "900"], *([["env", "-i"]] if self._clean else [])]
        kind = self._dice.randrange(8)
        if kind == 0:
            pause = self._dice.choice(["0.005", "0.02", "0.1"])
            return [sys.executable, "-I", "-S", "-c", HOPPING, pause, self._mark]
        if kind <= 3 and depth > 0:
            return [*self._dice.choice(around), "bash", "-c", f"{self.children(depth - 1)} {self._last()}", self._mark]
        return [*self._dice.choice(around), "sleep", self._mark]

    def _last(self) -> str:
        """What a shell ends with."""
        one = f"sleep {self._mark}"
        return self._dice.choice(
            [
                f"exec {one}",
                f"{one}; true",
                f"trap '' TERM; {one}; {one}",
                f"trap '{one} & setsid {one} & ' TERM; while :; do {one} & wait $!; done",
                f"trap 'sleep 0.1; exit 0' TERM; {one} & wait",
                f"kill -STOP $$; {one}",
                "exit 0",
            ]
        )


# -- the ways in which a job ends ----------------------------------------------------------------------------------


def _supervised(folder: Path, one: Trial, **more: object) -> LocalRun:
    return LocalRun(folder, plan(one.command, grace_s=one.grace, **more))


def _pids(run: LocalRun) -> list[int]:
    """The bootstraps, node by node."""
    found = run.until(lambda: run.process.poll() is not None or len(run.events("bootstrap_up")) == 2)
    return [event["pid"] for event in run.events("bootstrap_up")] if found else []


def _end(pids: Sequence[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass  # it was quicker


def _cancelled(folder: Path, one: Trial) -> None:
    run = _supervised(folder, one)
    if one.victim % 2:
        _pids(run)
    time.sleep(one.delay)  # here and below: the moment is what is tried
    run.process.send_signal(signal.SIGTERM)
    run.wait()


def _timed_out(folder: Path, one: Trial) -> None:
    _supervised(folder, one, timeout_s=one.delay).wait()


def _rank_fails(folder: Path, one: Trial) -> None:
    _supervised(folder, one).wait()


def _bootstrap(signum: int) -> Callable[[Path, Trial], None]:
    def end(folder: Path, one: Trial) -> None:
        run = _supervised(folder, one)
        bootstraps = _pids(run)
        time.sleep(one.delay)
        _end([bootstraps[one.victim % 2]], signum)
        run.wait()

    return end


def _supervisor_killed(folder: Path, one: Trial) -> None:
    """Then the bootstraps end by themselves."""
    run = _supervised(folder, one)
    bootstraps = _pids(run)
    time.sleep(one.delay)
    _end([run.process.pid], signal.SIGKILL)
    run.wait()
    run.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in bootstraps))


def _killed_then_shown(everybody: bool) -> Callable[[Path, Trial], None]:
    def end(folder: Path, one: Trial) -> None:
        run = _supervised(folder, one)
        bootstraps = _pids(run)
        time.sleep(one.delay)
        _end([run.process.pid, *(bootstraps if everybody else [])], signal.SIGKILL)
        run.wait()
        RunFolder(folder).state()  # as `jobsdk job show` does it

    return end


def _in_terminal(key: bytes) -> Callable[[Path, Trial], None]:
    """`jobsdk run` on a terminal of its own: there a key is pressed, or (none) the terminal is closed."""

    def end(folder: Path, one: Trial) -> None:
        name, home = folder.name, folder.parent.parent
        settings = ["--set", f"name={name}", "--set", f"limits.grace_period={one.grace:.3f}"]
        shape = ["--nodes", "2", "--processes", "2"]
        argv = [sys.executable, "-m", "jobsdk", "run", *shape, *settings, "--", "bash", "-c", one.command]
        ours, theirs = pty.openpty()
        # Something between us makes the terminal that of the session, as a login does.
        login = [sys.executable, "-I", "-S", "-c", _LOGIN, *argv]
        process = subprocess.Popen(
            login, stdin=theirs, stdout=theirs, stderr=theirs, cwd=home, start_new_session=True,
            env={**os.environ, "JOBSDK_HOME": str(home), "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"run " + name.encode() not in shown:  # before that Python itself answers to signals
            shown += os.read(ours, 4096)
        time.sleep(one.delay)
        os.write(ours, key)
        try:
            while key and os.read(ours, 4096):  # a terminal that nobody reads would hold it up
                pass
        except OSError:
            pass  # it has left
        os.close(ours)
        process.wait(timeout=200)
        wait_for(lambda: RunFolder(folder).state().is_terminal)
        wait_for(lambda: RunFolder(folder).living_owner() is None)

    return end


_LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"

WAYS: dict[str, Callable[[Path, Trial], None]] = {
    "cancelled": _cancelled,
    "timed out": _timed_out,
    "a rank fails": _rank_fails,
    "SIGTERM to a bootstrap": _bootstrap(signal.SIGTERM),
    "SIGKILL to a bootstrap": _bootstrap(signal.SIGKILL),
    "supervisor killed": _supervisor_killed,
    "supervisor killed, then shown": _killed_then_shown(everybody=False),
    "everybody killed": _killed_then_shown(everybody=True),
    "Ctrl-C": _in_terminal(b"\x03"),
    "terminal closed": _in_terminal(b""),
}


# -- what is left --------------------------------------------------------------------------------------------------


def left_of(folder: Path, mark: str) -> dict[int, str]:
    """Living processes of a run with their command lines: known by their environment, or by their arguments."""
    of_run, found = f"JOBSDK_RUN_DIR={folder}".encode(), {}
    # The newest first: one that goes on in another every few milliseconds is gone when all have been looked at.
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if line and (of_run in environment or mark.encode() in line):
            found[pid] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


def left_after(one: Trial, home: Path) -> dict[int, str]:
    """Run a trial in a folder of its own under `home`; what it leaves, which is ended too."""
    folder = home / "runs" / f"trial-{one.number.replace('/', '-')}"
    folder.parent.mkdir(exist_ok=True)
    try:
        WAYS[one.way](folder, one)
        # A process that has been killed is not gone in the same moment, on a busy machine not in the same second.
        deadline = time.monotonic() + 60.0
        while (left := left_of(folder, one.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        while again := left_of(folder, one.mark):
            _end(list(again), signal.SIGKILL)
    return left


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bootstrap.stopping", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    bad: Counter[str] = Counter()

    def attempt(number: int) -> None:
        one = trial(options.seed, number)
        with tempfile.TemporaryDirectory(prefix="stopping-", ignore_cleanup_errors=True) as home:
            try:
                left = left_after(one, Path(home))
            except Exception as error:  # it has not ended: what its processes said tells why
                said = [path.read_text()[-2000:] for path in Path(home).glob("runs/*/logs/**/*.log")]
                left = {0: "\n".join([f"{type(error).__name__}: {error}", *filter(None, said)])}
        tried[one.way] += 1
        bad[one.way] += bool(left)
        if left:
            print(f"trial {one.number}, {one.way} after {one.delay:.2f} s:\n{one.command}\nleft: {left}", flush=True)

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(attempt, range(options.first, options.first + options.trials)))
    for way, count in tried.items():
        print(f"{way}: {bad[way]} of {count} left something")
    print(f"{sum(bad.values())} of {options.trials} left something ({time.monotonic() - began:.0f} s)")
    return 1 if any(bad.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
