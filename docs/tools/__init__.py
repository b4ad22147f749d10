"""What keeps the pages true: generated parts, schemas, and examples that are run."""
