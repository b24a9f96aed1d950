"""Roles that are trained by actors of Ray: one actor per process, one placement group per pool."""
