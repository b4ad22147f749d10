"""SGLang's attention backends, read from its source."""
