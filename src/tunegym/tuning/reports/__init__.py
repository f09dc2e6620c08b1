"""Reports: read the store only."""
