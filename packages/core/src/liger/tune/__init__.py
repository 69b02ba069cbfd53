"""`liger tune`: time other launch settings of an op, and keep in the user's table what is faster.

`search` does it, `main` is the command. `liger.settings` says what the tables are; the default path of a kernel
never comes here.
"""
