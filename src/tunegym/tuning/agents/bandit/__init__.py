"""The contextual bandit."""
