"""Every Liger kernel and model package."""
