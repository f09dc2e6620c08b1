"""Answers from trials: rankings, certainty, recommendations. Pure: no files, no clock, no random numbers."""
