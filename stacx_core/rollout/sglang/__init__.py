"""Rollouts and teachers on SGLang servers; imported only when such a server is asked for."""
