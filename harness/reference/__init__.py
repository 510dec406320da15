"""Runs a reference model as the job."""
