"""Soak: the installed program is stopped at seeded moments, or its disk fills, and then it is run again.

``make soak`` plays points over every program and prints a table; ``make test`` plays ten kill points on the
quick ones. A point starts the program in a fresh workspace, waits a seeded fraction of the duration of a
clean run, sends one signal to the main process alone, and asks what a user would: does anything still run,
is anything half written, does the same command now give what it gives anywhere else?
"""
