"""The job as it runs: what its plain and timed windows say, without a profiler."""
