"""A second witness: the plain pass, the other profiler; and why numbers are null."""
