"""Errors, text, files, references, clocks, random draws, child processes, messages: imports nothing of ours."""
