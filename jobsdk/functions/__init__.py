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

if TYPE_CHECKING:
    from pathlib import Path

    from jobsdk.explain import Explanation
    from jobsdk.job.command import CommandJob
    from jobsdk.run import Run

#: What `function` takes besides the options of `command`: those of `JobOperations.create_or_update`.
_OF_SUBMISSION = ("build_env", "in_place", "strict", "warn")


@overload
def function(fn: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], Function]: ...


@overload
def function(
    fn: Callable[..., Any], /, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> FunctionJob: ...


def function(
    fn: Callable[..., Any] | None = None, /, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """A job that calls `fn(*args, **kwargs)` in every rank; without `fn` a decorator that makes a `Function`.

    `options` are those of `command()` but `command` itself, and `build_env`, `in_place`, `strict` and `warn` of
    `JobOperations.create_or_update`. The function travels by value, with the modules of its project; with `code` the
    job has that folder, whose modules are imported from there. Raises ValidationError for an option that there is not,
    TypeError for arguments that `fn` does not take.
    """
    template = _Options(options)
    if fn is None:
        if args or kwargs:
            raise TypeError("function() without a function is a decorator, and takes options only")
        return lambda decorated: Function(decorated, template)
    return FunctionJob(fn, args, kwargs or {}, template)


class _Options:
    """What a job of a function is made with, judged at once."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.submission = {name: options[name] for name in _OF_SUBMISSION if name in options}
        self._job = {name: value for name, value in options.items() if name not in _OF_SUBMISSION}
        if "command" in self._job:
            from jobsdk.job.findings import Finding

            fix = "leave it out, or make the job with command()"
            raise ValidationError([Finding("error", ("command",), "a function is called, no command", fix)])
        self.job("true", None)

    def job(self, text: str, code: Path | None, **more: Any) -> CommandJob:
        """The job that runs the command `text` in `code`."""
        from jobsdk.job.command import command

        given = {**self._job, **more}
        return command(**{**given, "command": text, "code": code if code is not None else given.get("code")})


class FunctionJob:
    """A call that is to be made in every rank of a job. `MLClient().jobs` takes it as any other job."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: _Options
    ) -> None:
        _bind(fn, args, kwargs)
        self.fn, self.args, self.kwargs = fn, tuple(args), dict(kwargs)
        self._options = options

    def __repr__(self) -> str:
        from jobsdk.functions.payload import name_of

        return f"FunctionJob({name_of(self.fn)})"

    def job(self) -> CommandJob:
        """The command job that makes the call; the function is put into a folder of `JOBSDK_HOME` for it.

        Raises JobsdkError for what cannot be pickled, with the way to it.
        """
        from pathlib import Path

        from jobsdk.functions import payload
        from jobsdk.functions.outcome import PROPERTY

        empty = self._options.job("true", None)
        code = empty.resolve(empty.code) if empty.code is not None else None
        if self._options.submission.get("in_place"):
            # Nothing is copied: the command names the folder, and the job runs where it would without.
            folder = payload.stage(self.fn, self.args, self.kwargs, None)
            text, place = f"python {_quoted(folder / payload.FOLDER / 'call.py')}", code
        else:
            folder = payload.stage(self.fn, self.args, self.kwargs, code)
            text, place = payload.COMMAND, Path(folder)
        properties = {**empty.properties, PROPERTY: payload.name_of(self.fn)}
        return self._options.job(text, place, properties=properties)

    def explain(self, **options: Any) -> Explanation:
        """As `CommandJob.explain`."""
        return self.job().explain(**options)

    def submit(self) -> Run:
        """Submit it, and return its run at once. Raises as `JobOperations.create_or_update` does."""
        from jobsdk.client import MLClient

        return MLClient().jobs.create_or_update(self, **self._options.submission)

    @property
    def submission(self) -> Mapping[str, Any]:
        """The options of its submission that it was made with."""
        return self._options.submission


class Function:
    """A function that can be sent as a job. Called, it is the function itself, here and now."""

    def __init__(self, fn: Callable[..., Any], options: _Options) -> None:
        import functools

        self.fn = fn
        self._options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _plain, (self.fn,)  # within a job it is the function

    def job(self, *args: Any, **kwargs: Any) -> FunctionJob:
        """The job that calls it with these arguments."""
        return FunctionJob(self.fn, args, kwargs, self._options)

    def submit(self, *args: Any, **kwargs: Any) -> Run:
        """Submit a job that calls it with these arguments, and return its run at once."""
        return self.job(*args, **kwargs).submit()

    def map(self, *iterables: Iterable[Any], limit: int = 4) -> Iterator[Any]:
        """What it returns for each tuple of arguments, in their order, as `concurrent.futures.Executor.map` does it.

        At most `limit` runs are under way at a time; they start at once, and are cancelled when the iterator is closed
        or garbage. The first exception, in the order of the arguments, is raised.
        """
        return _mapped([self.job(*args) for args in zip(*iterables, strict=False)], limit)


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def _bind(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that the function does not take."""
    import inspect

    if not callable(fn):
        raise TypeError(f"function() takes a function, not an object of type {type(fn).__name__}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        from jobsdk.functions.payload import name_of

        raise TypeError(f"{name_of(fn)}(): {error}") from None


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def as_completed(runs: Iterable[Run], timeout: float | None = None) -> Iterator[Run]:
    """The runs, each when it has ended, however it has. Raises TimeoutError when not all have after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = list(dict.fromkeys(runs))
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


def _mapped(jobs: Sequence[FunctionJob], limit: int) -> Iterator[Any]:
    if limit < 1:
        raise ValueError("limit must be at least 1")
    from concurrent.futures import ThreadPoolExecutor

    pool, stopped, lock = ThreadPoolExecutor(limit, "jobsdk-map"), threading.Event(), threading.Lock()
    under_way: set[Run] = set()

    def call(job: FunctionJob) -> Any:
        with lock:
            if stopped.is_set():
                raise JobsdkError("it was not submitted: the mapping has ended")
            run = job.submit()
            under_way.add(run)
        value = run.result()
        with lock:
            under_way.discard(run)
        return value

    futures = [pool.submit(call, job) for job in jobs]

    def values() -> Iterator[Any]:
        try:
            for future in futures:
                yield future.result()
        finally:
            stopped.set()
            with lock:
                left = list(under_way)
            for run in left:
                with contextlib.suppress(JobsdkError):
                    run.cancel()
            pool.shutdown(wait=False, cancel_futures=True)

    return values()
