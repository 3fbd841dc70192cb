"""Compiled kernels: C sources for the CPU, built where they run, and what binds them."""
