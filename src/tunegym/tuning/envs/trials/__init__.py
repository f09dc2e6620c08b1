"""Experiments of trials: a job for each."""
