"""An OpenAI-compatible endpoint in front of a rollout engine, which records the token ids of whoever calls it."""
