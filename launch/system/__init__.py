"""What this machine is and what runs on it: processes, devices, SLURM, nsys."""
