"""Answers from trials: rankings, intervals, confirmations, recommendations. Pure: no files, no clock, no randomness."""
