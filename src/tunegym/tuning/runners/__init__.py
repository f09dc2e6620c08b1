"""Runners: where jobs run."""
