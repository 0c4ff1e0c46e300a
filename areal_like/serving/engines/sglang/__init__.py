"""SGLang as an inference engine."""
