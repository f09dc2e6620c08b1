"""Asynchronous RL through the data plane: what it learns, and how many steps it takes at a time."""
