"""A live HTTP service, and whether an agent learns to run it better than its default settings do."""
