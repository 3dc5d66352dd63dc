"""Faults of a rank: its program, what it lacks, what is done to it."""

from __future__ import annotations

import re
import signal

from tests.chaos import injections as do
from tests.chaos import surroundings as within
from tests.chaos.fault import ANY, CGROUP, FINISH, GATE, PATIENT, ROOT, Fault, fails, of_rank, restarts

_ALONE = "then: the job was stopped .*\nothers: ranks 0-2 stopped by jobsdk"
#: Python that waits for SIGTERM in vain.
_DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

PROGRAM = [
    of_rank("exit code", "sys.exit(7)", "exited with code 7", "exit", 7, ranks=[3], card=_ALONE),
    of_rank("exit code 255", "os._exit(255)", "exited with code 255", "exit", 255),
    of_rank("exit with a message", "sys.exit('no such optimizer')", "exited with code 1", "exit",
            card="its last lines:\n  no such optimizer\n"),
    of_rank("exception", "raise ValueError('no such layer')", "exited with code 1: ValueError: no such layer",
            "exception", card=r"Traceback[\s\S]*ValueError: no such layer"),
    of_rank("chained exceptions", """
            try:
                {}["lr"]
            except KeyError as error:
                raise RuntimeError("no learning rate") from error
            """, "exited with code 1: RuntimeError: no learning rate", "exception"),
    of_rank("assertion", "assert RANK < 3, 'ranks differ'", "exited with code 1: AssertionError: ranks differ",
            "assertion"),
    of_rank("syntax error", "open('model.py', 'w').write('def f(:'); import model",
            "exited with code 1: SyntaxError: .*", "syntax_error"),
    of_rank("missing module", "import no_such_module",
            "exited with code 1: ModuleNotFoundError: No module named 'no_such_module'", "import_error",
            card=r"\nadvice: install it in the job's environment"),
    of_rank("missing file", "open('data/train.csv')",
            r"exited with code 1: FileNotFoundError: .*No such file or directory: 'data/train.csv'", "file_not_found",
            card="\nadvice: relative paths begin at the job's working directory"),
    of_rank("recursion", "def f(): f()\nf()",
            "exited with code 1: RecursionError: maximum recursion depth exceeded", "exception"),
    Fault("missing command", r"as Failed: rank \d on node \d exited with code 127: .*tran: command not found$",
          "command_not_found", exit_code=127, rank=ANY, node=ANY, ranks=range(4), command=GATE + "tran --epochs 3",
          inject=do.at_once(do.go), plan=PATIENT),
    Fault("not executable", "as Failed: rank 3 on node 1 exited with code 126: .*tool: .*Permission denied$",
          "not_executable", exit_code=126, rank=3, node=1, around=within.program("tool", "#!/bin/sh\n", 0o644),
          command="if [ $RANK = 3 ]; then exec ./tool; fi; sleep 600", waits=False,
          card="\nadvice: make the file executable"),
    Fault("no python in the environment", r"as Failed: rank \d on node \d exited with code 127: .*python: not found$",
          "command_not_found", exit_code=127, rank=ANY, node=ANY, ranks=range(4), around=within.without_programs,
          command=GATE + "exec python train.py", inject=do.at_once(do.go), plan=PATIENT,
          card="\nadvice: the command must be on PATH"),
    Fault("unreadable code", "as Failed: rank 3 on node 1 exited with code 2: .*train.py.*Permission denied$",
          "permission_denied", exit_code=2, rank=3, node=1, waits=False,
          command="[ $RANK != 3 ] || exec setpriv --reuid 65534 --clear-groups python train.py; sleep 600"),
    Fault("the same error in all ranks", r"as Failed: rank \d on node \d exited with code 1: KeyError: 'labels'$",
          "exception", rank=ANY, node=ANY, ranks=range(4), script="go()\nmeet(*range(4))\n{}['labels']\n",
          card="also on ranks "),
    Fault("an error of one node's ranks", "as Failed: rank [23] on node 1 exited with code 1: OSError: no such mount$",
          "exception", rank=ANY, node=1, ranks=[2, 3],
          script=fails("meet(2, 3)\nraise OSError('no such mount')", 2, 3), card="also on rank [23]"),
    Fault("rank 0 alone", "as Failed: rank 0 on node 0 exited with code 9$", "exit", exit_code=9, rank=0, node=0,
          script=fails("sys.exit(9)", 0), card="others: ranks 1-3 stopped by jobsdk"),
    Fault("an error that is no failure", "as Completed: all 4 ranks ended with code 0$", None, "Completed", 0,
          script="go()\nimport traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"),
]  # fmt: skip

SIGNALS = [
    of_rank("segmentation fault", "import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV: a segmentation fault",
            "segmentation_fault", 139, card="\nadvice: PYTHONFAULTHANDLER"),
    of_rank("abort", "os.abort()", r"was killed by SIGABRT \(abort\)", "abort", 134),
    of_rank("illegal instruction", "os.kill(os.getpid(), signal.SIGILL)",
            "was killed by SIGILL: an illegal instruction", "illegal_instruction", 132),
    Fault("SIGKILL from outside", "as Failed: rank 3 on node 1 was killed by SIGKILL$", "signal", exit_code=137,
          rank=3, node=1, inject=do.to_rank(3, signal.SIGKILL), card=_ALONE),
    Fault("SIGTERM from outside", "as Failed: rank 3 on node 1 was killed by SIGTERM$", "signal", exit_code=143,
          rank=3, node=1, inject=do.to_rank(3, signal.SIGTERM)),
    Fault("SIGHUP from outside", "as Failed: rank 2 on node 1 was killed by SIGHUP$", "signal", exit_code=129,
          rank=2, node=1, inject=do.to_rank(2, signal.SIGHUP)),
    Fault("SIGINT from outside", "as Failed: rank 3 on node 1 was interrupted: KeyboardInterrupt$", "interrupted",
          exit_code=130, rank=3, node=1, inject=do.to_rank(3, signal.SIGINT)),
    Fault("all ranks killed at once", r"as Failed: rank \d on node \d was killed by SIGKILL$", "signal",
          exit_code=137, rank=ANY, node=ANY, ranks=range(4), plan=PATIENT,
          inject=do.at_once(do.to_ranks(signal.SIGKILL, 0, 1, 2, 3))),
    Fault("stopped by SIGSTOP", r"as TimedOut: no rank wrote output .* for 5 s: .*rank 3: stopped \(SIGSTOP\)$", "hang",
          "TimedOut", 124, inject=do.to_rank(3, signal.SIGSTOP), plan={"hang_timeout_s": 5.0}, card="3 ranks in hold"),
    Fault("a hang", "as TimedOut: no rank wrote output .* for 5 s: 4 ranks in hold at ", "hang", "TimedOut", 124,
          plan={"hang_timeout_s": 5.0}, card=r"4 ranks in hold at part.py:\d+ \(ranks 0-3\)"),
    Fault("ignores SIGTERM", "as Failed: rank 3 on node 1 exited with code 5$", "exit", exit_code=5, rank=3, node=1,
          script=_DEAF + fails("sys.exit(5)"), plan={"grace_s": 0.3},
          card="others: ranks 0-2 killed after the grace time"),
    Fault("ends in order when told to", "as Failed: rank 3 on node 1 exited with code 5$", "exit", exit_code=5,
          rank=3, node=1, script="signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + fails("sys.exit(5)"),
          card="others: ranks 0-2 stopped by jobsdk"),
    Fault("fails when told to end", "as Failed: rank 3 on node 1 exited with code 5$", "exit", exit_code=5, rank=3,
          node=1, script="signal.signal(signal.SIGTERM, lambda *_: 1 / 0)\n" + fails("sys.exit(5)")),
]  # fmt: skip

_EATS = "x = bytearray(1 << 30)"

WANT = [
    of_rank("out of memory", _EATS, r"ran out of memory and was killed by SIGKILL \(limit of its cgroup: 300 MiB\)",
            "out_of_memory", 137, around=within.memory(300 << 20), marks=[CGROUP],
            card="\nadvice: the limit is 300 MiB"),
    of_rank("a child out of memory", f"subprocess.run([sys.executable, '-c', {_EATS!r}], check=True)",
            r"ran out of memory and a process of it was killed by SIGKILL \(limit of its cgroup: 300 MiB\)",
            "out_of_memory", 1, around=within.memory(300 << 20), marks=[CGROUP]),
    Fault("out of memory under a shell", r"as Failed: rank 3 on node 1 ran out of memory and .*SIGKILL.*300 MiB\)$",
          "out_of_memory", exit_code=137, rank=3, node=1, script=fails(_EATS), around=within.memory(300 << 20),
          marks=[CGROUP], command="python train.py; exit $?"),
    of_rank("allocation refused", "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
            + _EATS, "ran out of memory: MemoryError", "out_of_memory"),
    of_rank("disk full", "open('checkpoint', 'wb').write(bytes(8 << 20))",
            r"ran out of disk space: OSError: \[Errno 28\] No space left on device", "disk_full",
            around=within.small_disk("2m", lambda job: job.work), marks=[ROOT], card="\nadvice: .* has .* left"),
    of_rank("/dev/shm full", """
            import mmap
            file = os.open("/dev/shm/batch", os.O_CREAT | os.O_RDWR)
            os.ftruncate(file, 8 << 20)
            mmap.mmap(file, 8 << 20).write(bytes(8 << 20))
            """, "was killed by SIGBUS: a bus error", "bus_error", 135, around=within.small_shared_memory, marks=[ROOT],
            card=r"\nadvice: most often /dev/shm is too small \(here 1 MiB\)"),
    of_rank("too many open files", """
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
            kept = [open(__file__) for _ in range(20)]
            """, r"ran out of file descriptors: OSError: \[Errno 24\] Too many open files: .*", "too_many_open_files"),
    of_rank("too many processes", """
            import resource
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            os.setuid(65534)
            os.fork()
            """, r"could not start another process or thread: BlockingIOError: .*", "too_many_processes"),
    of_rank("not allowed to read", "open('secret', 'w').close(); os.chmod('secret', 0); os.setuid(65534);"
            "open('secret')", r"exited with code 1: PermissionError: .*'secret'", "permission_denied"),
    Fault("a port of its own in use", r"as Failed: rank 3 on node 1 found port \d+ in use: OSError: \[Errno 98\] .*$",
          "port_in_use", rank=3, node=1, around=within.taken_port,
          script=fails("import socket; socket.create_server(('127.0.0.1', int(os.environ['PORT'])))"),
          card="\nadvice: take the port from MASTER_PORT"),
    Fault("missing input", "as Failed: input data: there is no /nowhere/at/all$", "bootstrap_error", exit_code=126,
          node=0, waits=False, plan={"inputs": {"data": {"type": "uri_folder", "mode": None,
                                                         "uri": "/nowhere/at/all"}}}),
]  # fmt: skip

OUTPUT = [
    of_rank("a line of 100 MB", "sys.stdout.write('x' * (100 << 20)); sys.stdout.flush(); raise ValueError('late')",
            "exited with code 1: ValueError: late", "exception"),
    of_rank("binary output", "os.write(1, bytes(range(256)) * 40 + b'\\x1b[2J\\x1b]0;x\\x07\\n'); sys.exit(3)",
            "exited with code 3", "exit", 3),
    of_rank("a colored exception", "raise ValueError('\\x1b[31mred\\x1b[0m \\u202e')",
            "exited with code 1: ValueError: red ?", "exception"),
    of_rank("closed output", "os.close(1); os.close(2); os._exit(6)", "exited with code 6", "exit", 6),
    of_rank("its log is removed", "os.unlink(os.readlink('/proc/self/fd/1')); print('gone'); sys.exit(4)",
            "exited with code 4", "exit", 4),
    of_rank("the run's events are removed", "os.unlink(os.environ['JOBSDK_RUN_DIR'] + '/events.jsonl'); sys.exit(4)",
            "exited with code 4", "exit", 4),
    of_rank("the code folder is removed", "import shutil; shutil.rmtree(os.getcwd()); raise ValueError('no folder')",
            "exited with code 1: ValueError: no folder", "exception"),
    Fault("a full pipe, cancelled", "as Canceled: cancelled on request$", None, "Canceled", 130,
          script="up()\nsubprocess.Popen(['yes'], stdout=subprocess.PIPE).wait()\n",
          inject=do.to_supervisor(signal.SIGTERM), card="others: ranks 0-3 stopped by jobsdk"),
    Fault("a full pipe, time up", r"as TimedOut: the job was stopped after limits.timeout = 6 s$", "timeout",
          "TimedOut", 124, script="up()\nsubprocess.Popen(['yes'], stdout=subprocess.PIPE).wait()\n",
          plan={"timeout_s": 6, **PATIENT}, waits=False, inject=do.let_the_time_be_up,
          card=r"\nstacks:\n  4 ranks in .*wait.* at train.py:3"),
]  # fmt: skip

CHILDREN = [
    of_rank("a grandchild in another session", "subprocess.Popen(['setsid', 'sleep', '600']); sys.exit(3)",
            "exited with code 3", "exit", 3),
    of_rank("fifty children", """
            for _ in range(50):
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(600)
                    os._exit(0)
            sys.exit(3)
            """, "exited with code 3", "exit", 3, plan={"grace_s": 0.3}),
    Fault("children that outlive a success", "as Completed: all 4 ranks ended with code 0$", None, "Completed", 0,
          script="go()\nsubprocess.Popen(['setsid', 'sleep', '600'])\n", plan={"grace_s": 0.3}),
    of_rank("a child that crashes", "subprocess.run([sys.executable, '-c', 'import os; os.abort()'], check=True)",
            r"exited with code 1 \(abort\): CalledProcessError: .*died with <Signals.SIGABRT: 6>.*", "abort"),
]  # fmt: skip

#: Each attempt comes as far as the one before.
_REPORTS = """if RANK == 0:
    with open(os.environ["JOBSDK_REPORTS"], "a") as file:
        file.write('{"step": 7}\\n')
"""
#: In the first attempt rank 3 kills the process that forked it, the bootstrap's first child, and itself.
_KILLS_FORKER = """go()
if RANK == 3 and RESTART == 0:
    with open("/proc/%d/task/%d/children" % (os.getppid(), os.getppid())) as file:
        forker = min(map(int, file.read().split()))
    assert str(forker) not in [open(f"{FOLDER}/up-0-{rank}").read() for rank in range(4)]
    os.kill(forker, 9)
    os.kill(os.getpid(), 9)
"""

RESTARTED = [
    Fault("started again after a failure", "as Completed: all 4 ranks ended with code 0$", None, "Completed", 0,
          script="go()\nif RANK == 3 and RESTART == 0:\n    raise ValueError('once')\n", plan=restarts(max=1),
          history=["exception"]),
    Fault("fails again and again", "as Failed: rank 3 on node 1 exited with code 1: ValueError: always$", "exception",
          rank=3, node=1, script=fails("raise ValueError('always')"), plan=restarts(max=2),
          history=["exception", "exception"], card=r"restarted at once \(2 of 2\)\nthen: .*max_restarts = 2 is used"),
    Fault("another failure the second time", "as Failed: rank 0 on node 0 exited with code 8$", "exit", exit_code=8,
          rank=0, node=0, script="go()\nif (RANK, RESTART) in ((3, 0), (0, 1)):\n    sys.exit(7 + RESTART)\nhold()\n",
          plan=restarts(max=1), history=["exit"], card=r"\nbefore: at .* rank 3 on node 1 exited with code 7; "),
    Fault("no progress", "as Failed: rank 3 on node 1 exited with code 1: ValueError: always$", "no_progress",
          exit_code=80, rank=3, node=1, script=_REPORTS + fails("raise ValueError('always')"),
          plan=restarts(max=9, max_no_progress=2), history=["exception", "exception"],
          card=r"then: .*not restarted: max_no_progress = 2 is used up, and step 7 is still the latest"),
    Fault("killed, and forked again", "as Completed: all 4 ranks ended with code 0$", None, "Completed", 0,
          command="python train.py", script="go()\nif RANK == 3 and RESTART == 0:\n    os.kill(os.getpid(), 9)\n",
          plan={"preload": ["decimal"], **restarts(max=1)}, history=["signal"]),
    Fault("killed with what it was forked from", "as Completed: all 4 ranks ended with code 0$", None, "Completed", 0,
          command="python train.py", script=_KILLS_FORKER, plan={"preload": ["decimal"], **restarts(max=1)},
          history=["signal"]),
    Fault("no sense in another try", "as Failed: rank 3 on node 1 exited with code 1: ModuleNotFoundError: .*$",
          "import_error", rank=3, node=1, script=fails("import no_such_module"), plan=restarts(max=3),
          card="then: .*not restarted: it would fail again"),
    Fault("cancelled between two starts", "as Canceled: cancelled on request$", None, "Canceled", 130,
          script=fails("sys.exit(3)"), plan=restarts(max=1, delay_s=60.0), inject=do.cancel_between_starts,
          history=["exit"]),
    Fault("cancelled", "as Canceled: cancelled on request$", None, "Canceled", 130,
          inject=do.to_supervisor(signal.SIGTERM)),
    Fault("cancelled, and all ignore it", "as Canceled: cancelled on request$", None, "Canceled", 130,
          script=_DEAF + "hold()\n", plan={"grace_s": 0.3}, inject=do.to_supervisor(signal.SIGINT),
          card="others: ranks 0-3 killed after the grace time"),
    Fault("time up", re.escape("as TimedOut: the job was stopped after limits.timeout = 6 s") + "$", "timeout",
          "TimedOut", 124, plan={"timeout_s": 6, **PATIENT}, waits=False, inject=do.let_the_time_be_up,
          card=r"\nstacks:\n  4 ranks in hold at part.py"),
    Fault("nothing wrong", "as Completed: all 4 ranks ended with code 0$", None, "Completed", 0, script=FINISH),
]  # fmt: skip

RANKS = [*PROGRAM, *SIGNALS, *WANT, *OUTPUT, *CHILDREN, *RESTARTED]
