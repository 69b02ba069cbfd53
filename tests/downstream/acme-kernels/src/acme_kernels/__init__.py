"""A third party's kernel for a device of its own."""
