"""Trackers: views of the journal in somebody else's store. Each follows the journal from a process of its own."""
