"""Declarations of the ops, one file each. Data only: no torch, no triton."""
