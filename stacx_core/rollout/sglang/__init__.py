"""SGLang servers: where users outgrow the in-process engine."""
