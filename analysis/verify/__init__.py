"""Checks results against independent evidence (the plain pass, the other profiler), and says why numbers are null."""
