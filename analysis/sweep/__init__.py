"""Evaluates sweeps and sets of runs: scaling, latency, comparison, and their report."""
