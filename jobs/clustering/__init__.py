"""Clustering rows: its parameters and its kernels."""
