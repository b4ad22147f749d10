"""Kernels of Triton on the simulated device.

Triton's own compiler is run up to its tensor IR, which is the same for every GPU; that is read, and
run on the memory of the host, all programs of a grid at once. Triton is imported by `driver` alone.
"""
