"""Training: one step, and the loop around it."""
