"""Exports of runs and sweeps to other tools: the rows and figures, and one sink per tool."""
