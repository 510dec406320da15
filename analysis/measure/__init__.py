"""Measures where each step's time went, which rank is late, which steps count, and what the data loader costs."""
