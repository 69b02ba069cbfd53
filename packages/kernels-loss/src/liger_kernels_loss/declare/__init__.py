"""Declarations of the losses, one file each. Data only: no torch, no triton."""
