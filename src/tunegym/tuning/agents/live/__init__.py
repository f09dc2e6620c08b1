"""Agents that drive a live system: one step of it at a time, and its own spaces."""
