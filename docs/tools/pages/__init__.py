"""The generated parts of the reference pages, a module for each: markdown from what the code says.

A page asks for its part between cog's markers; `make docs` tells which pages are stale, and
`make docs-write` renews them.
"""
