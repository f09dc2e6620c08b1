"""Workloads: parameters to jobs, finished jobs to metrics."""
