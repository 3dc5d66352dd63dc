"""Settings of the generated tests: no time limit for one example, and nothing remembered between runs."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("jobsdk", deadline=None, database=None)
settings.load_profile("jobsdk")
