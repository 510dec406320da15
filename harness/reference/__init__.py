"""The reference model as the job."""
