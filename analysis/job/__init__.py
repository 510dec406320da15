"""The job without a profiler: what its plain and timed windows show."""
