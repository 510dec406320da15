"""Many points: scaling, latency, comparison, and their report."""
