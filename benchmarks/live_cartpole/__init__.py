"""Learning to balance a pole through a scenario, beside the same library on its own."""
