"""What is installed, faults included.

Nothing is imported here: `scan` and `loading` run before pydantic is imported.
"""
