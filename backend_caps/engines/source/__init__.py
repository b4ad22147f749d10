"""An index of a Python tree, made from its text: nothing of it is imported or run."""
