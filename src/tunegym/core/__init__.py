"""Errors, named random streams, clocks, logging: imports nothing of ours."""
