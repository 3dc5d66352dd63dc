"""Benchmarks of jobsdk beside its peers: `python -m benchmarks`."""
