"""Kubernetes: JobSets, or indexed Jobs where a cluster has none."""
