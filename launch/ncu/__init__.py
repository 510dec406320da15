"""`rankscope ncu`: Nsight Compute on the heaviest kernels of a run."""
