"""Python functions as jobs: `function(train, 1e-3, distribution=...)`, or `@function(distribution=...)` above one.

@function(distribution=PyTorchDistribution(process_count_per_instance=2))
def train(rate): ...

run = train.submit(1e-3)      # returns at once
value = run.result()          # what rank 0 returned; an exception is raised here
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from jobsdk.errors import JobsdkError, ValidationError
from jobsdk.functions.names import name_of

if TYPE_CHECKING:
    from pathlib import Path

    from jobsdk.client.explain import Explanation
    from jobsdk.client.run import Run
    from jobsdk.job.command import CommandJob

#: What `function` takes besides the options of `command`: those of `JobOperations.create_or_update`.
_OF_SUBMISSION = ("build_env", "in_place", "strict", "refuse_outside_links", "warn")


@overload
def function(fn: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], Function]: ...


@overload
def function(
    fn: Callable[..., Any], /, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> FunctionJob: ...


def function(
    fn: Callable[..., Any] | None = None, /, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Create a job that calls `fn(*args, **kwargs)` in every rank. Without `fn`, return a decorator for a `Function`.

    `options` are the parameters of `command()`, except `command`, and `build_env`, `in_place`, `strict` and `warn` of
    `JobOperations.create_or_update`. The function is sent by value, with the modules of its project. With `code`, its
    modules are imported from that folder instead. Raises ValidationError for an unknown option, and TypeError for
    arguments that `fn` does not take.
    """
    template = _Options(options)
    if fn is None:
        if args or kwargs:
            raise TypeError("function() without a function is a decorator, and takes options only")
        return lambda decorated: Function(decorated, template)
    given = {} if kwargs is None else kwargs
    fix = "" if args or given else f"function({name_of(fn)}, ARGUMENTS...), or @function() with parentheses above it"
    _check(fn, args, given, fix)
    return FunctionJob(fn, args, given, template)


class _Options:
    """What a job of a function is made with, judged at once."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.submission = {name: options[name] for name in _OF_SUBMISSION if name in options}
        self._job = {name: value for name, value in options.items() if name not in _OF_SUBMISSION}
        if "command" in self._job:
            from jobsdk.findings import Finding

            fix = "leave it out, or make the job with command()"
            raise ValidationError([Finding("error", ("command",), "a function is called, no command", fix)])
        self.job("true", None)

    def job(self, text: str, code: Path | None, **more: Any) -> CommandJob:
        """Return the job that runs the command `text` in `code`."""
        from jobsdk.job.command import command

        given = {**self._job, **more}
        return command(**{**given, "command": text, "code": code if code is not None else given.get("code")})


class FunctionJob:
    """A call that every rank of a job makes. Submit it with `MLClient().jobs` like any other job."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: _Options
    ) -> None:
        self.fn, self.args, self.kwargs = fn, tuple(args), dict(kwargs)
        self._options = options

    def __repr__(self) -> str:
        return f"FunctionJob({name_of(self.fn)})"

    @property
    def code(self) -> Path | None:
        """The folder of the user's code that goes with the call."""
        from pathlib import Path

        empty = self._options.job("true", None)
        return Path(empty.resolve(empty.code)) if empty.code is not None else None

    def job(self, *, in_place: bool = False) -> CommandJob:
        """Return the command job that makes the call. Stores the function in a folder of `JOBSDK_HOME`.

        `in_place` must be that of the submission. Raises JobsdkError, with the path to the object, if something cannot
        be pickled.
        """
        import shlex
        from pathlib import Path

        from jobsdk.functions import payload
        from jobsdk.job.paths import working_directory
        from jobsdk.runs.provenance import FUNCTION

        empty, code = self._options.job("true", None), self.code
        place = f"{payload.FOLDER}/call.py"
        if in_place:
            # Nothing is copied: the command names the folder, and the job runs where it would without.
            call = payload.pickled(self.fn, self.args, self.kwargs, code or Path(working_directory()))
            place = shlex.quote(f"{payload.stage(call, None)}/{place}")
        else:
            code = payload.stage(payload.pickled(self.fn, self.args, self.kwargs, code), code)
        name = name_of(self.fn)
        names = {"display_name": empty.display_name or name, "properties": {**empty.properties, FUNCTION: name}}
        return self._options.job(f"python3 {place}", code, **names)

    def explain(self, **options: Any) -> Explanation:
        """Describe its processes, as `CommandJob.explain` does."""
        return self.job(in_place=self.options.get("in_place", False)).explain(**options)

    def submit(self) -> Run:
        """Submit it, and return its run at once. Raises the errors of `JobOperations.create_or_update`."""
        from jobsdk.client.operations import MLClient

        return MLClient().jobs.create_or_update(self)

    @property
    def options(self) -> Mapping[str, Any]:
        """Those of `JobOperations.create_or_update` that it was made with."""
        return self._options.submission


class Function:
    """A function that you can submit as a job. Calling it runs the function here."""

    def __init__(self, fn: Callable[..., Any], options: _Options) -> None:
        import functools

        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Function:
        """As a method: that of `instance`, which travels with it."""
        return self if instance is None else Function(self.fn.__get__(instance, owner), self.options)

    def job(self, /, *args: Any, **kwargs: Any) -> FunctionJob:
        """Return the job that calls it with these arguments."""
        _check(self.fn, args, kwargs)
        return FunctionJob(self.fn, args, kwargs, self.options)

    def submit(self, /, *args: Any, **kwargs: Any) -> Run:
        """Submit a job that calls it with these arguments, and return its run at once."""
        return self.job(*args, **kwargs).submit()

    def map(self, *iterables: Iterable[Any], limit: int = 4) -> _Mapping:
        """Yield its result for each tuple of arguments, in order, like `concurrent.futures.Executor.map`.

        Runs start at once, at most `limit` at a time. The first exception, in the order of the arguments, is raised. It
        cancels the remaining runs, and so does the iterator's `close()` or its garbage collection.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a whole number of at least 1, not {limit!r:.60}")
        return _Mapping([self.job(*args) for args in zip(*iterables, strict=False)], limit)


def check_kind(fn: Callable[..., Any]) -> None:
    """Raise TypeError for anything but a plain function."""
    import inspect

    if not callable(fn):
        raise TypeError(f"function() takes a function, not an object of type {type(fn).__name__}")
    for one in (fn, getattr(fn, "__call__", None)):  # noqa: B004  # of an object with the method, too
        for kind, is_one, instead in (
            ("a coroutine function", inspect.iscoroutinefunction, "a function that calls asyncio.run()"),
            ("a generator function", inspect.isgeneratorfunction, "a function that returns a list"),
            ("an asynchronous generator function", inspect.isasyncgenfunction, "a function that returns a list"),
        ):
            if is_one(one):
                raise TypeError(f"{name_of(fn)} is {kind}: what calling it gives cannot travel. Fix: {instead}")


def _check(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], fix: str = "") -> None:
    """Raises TypeError for what is no plain function, and for arguments that it does not take, with the `fix`."""
    import inspect

    check_kind(fn)
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError("kwargs must be a mapping of the names of parameters to values. Fix: kwargs={'steps': 50}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        from jobsdk.notebook import show_briefly

        name, empty = name_of(fn), inspect.Signature.empty
        bare = inspect.Signature([one.replace(annotation=empty) for one in signature.parameters.values()])
        shown = TypeError(f"{name}(): {error}. Fix: {fix or f'pass the arguments of {name}{bare}'}")
        show_briefly(shown)
        raise shown from None


def as_completed(runs: Iterable[Run], timeout: float | None = None) -> Iterator[Run]:
    """Yield each run when it ends, whether it succeeds or not.

    Raises TimeoutError if some have not ended after `timeout` seconds.
    """
    from jobsdk.client.run import Run

    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = [] if isinstance(runs, Run) else list(dict.fromkeys(runs))
    wrong = [runs] if isinstance(runs, Run) else [one for one in waiting if not isinstance(one, Run)]
    if wrong:
        kind = type(wrong[0]).__name__
        raise TypeError(f"as_completed() takes a list of runs, not a {kind}. Fix: as_completed([job.submit(), ...])")
    pause, total = 0.01, len(waiting)
    while waiting:
        ended = [run for run in waiting if run.done()]
        waiting = [run for run in waiting if run not in ended]
        yield from ended
        if ended or not waiting:
            pause = 0.01
            continue
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{len(waiting)} of {total} runs have not ended after {timeout:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


class _Mapping(Iterator[Any]):
    """The values of calls in their order. `close`, an error and being garbage end what is under way."""

    def __init__(self, jobs: Sequence[FunctionJob], limit: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._calls = _Calls()
        pool = ThreadPoolExecutor(limit, "jobsdk-map")
        self._futures = [pool.submit(self._calls.call, job) for job in jobs]
        self._given = 0
        pool.shutdown(wait=False)

    def __next__(self) -> Any:
        if self._given == len(self._futures):
            raise StopIteration
        self._given += 1
        try:
            return self._futures[self._given - 1].result()
        except StopIteration as error:  # it would look like the end
            self.close()
            raise RuntimeError("a function of map() raised StopIteration") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel what is under way, and submit no more."""
        for future in self._futures:
            future.cancel()
        self._calls.stop()
        self._given = len(self._futures)

    def __del__(self) -> None:
        if hasattr(self, "_futures"):
            self.close()


class _Calls:
    """Runs that threads wait for, until they are stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_stopped = False
        self._runs: set[Run] = set()

    def call(self, job: FunctionJob) -> Any:
        if self._is_stopped:
            return None  # nobody asks for it
        run = job.submit()
        with self._lock:
            self._runs.add(run)
            is_stopped = self._is_stopped
        try:
            if is_stopped:
                run.cancel()
            return run.result()
        finally:
            with self._lock:
                self._runs.discard(run)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped, left = True, list(self._runs)
        for run in left:
            with contextlib.suppress(JobsdkError):
                run.cancel()
