"""Measurements of tunegym beside its peers. Run one as ``python -m benchmarks.NAME``."""
