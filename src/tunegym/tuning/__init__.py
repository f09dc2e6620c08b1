"""The tuning half: from knobs and contexts over trials to reports."""
