"""A contextual bandit: Thompson sampling over contexts and settings."""
