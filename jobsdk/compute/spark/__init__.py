"""Spark: each node of a job is one task of a barrier stage."""
