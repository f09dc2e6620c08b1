"""The frozen values that the tuning half speaks in."""
