"""Live systems: where a ``GymServer`` lives, and how one talks to it."""
