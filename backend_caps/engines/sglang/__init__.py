"""SGLang, read from its source."""
