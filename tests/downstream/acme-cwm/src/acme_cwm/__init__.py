"""A third party's model plugin, from shared fits and one of its own."""
