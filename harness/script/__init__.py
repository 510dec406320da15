"""A user's own script as the job."""
