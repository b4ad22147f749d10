"""What checks look through: graphs and their replays, host lengths, waits, memory, exact numbers.

A probe runs a backend in some way, or watches it while it runs, and tells what was seen; which
claim that speaks against is the check's to say.
"""
