"""What `jobsdk` is where it is not installed: `jobsdk.train` alone, which is sent with every job (see arming.py)."""


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        "jobsdk is not installed here: a job brings jobsdk.train alone. Fix: install jobsdk to use " + name
    )
