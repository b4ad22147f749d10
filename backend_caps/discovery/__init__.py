"""The installed plugins and their faults.

Nothing is imported here: `scan` and `loading` run before pydantic is imported.
"""
