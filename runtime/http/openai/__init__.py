"""OpenAI's API over the runtime: its names and shapes, nothing of HTTP's mechanics."""
