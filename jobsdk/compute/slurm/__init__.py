"""Slurm: sbatch scripts, one step over all nodes."""
