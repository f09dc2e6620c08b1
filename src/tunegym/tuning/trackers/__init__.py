"""Trackers: views of the journal in another store. Each follows the journal from its own child process."""
