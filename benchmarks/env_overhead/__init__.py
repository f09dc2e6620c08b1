"""What the Gymnasium face costs per recorded step, beside the engine alone."""
