"""Arithmetic with backward passes and batching rules of its own: library operators, and our CUDA kernels."""
