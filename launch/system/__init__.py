"""This machine and what runs on it: processes, devices, SLURM, nsys, ncu."""
