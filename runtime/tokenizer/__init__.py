"""Text and messages to token ids, with each id's bytes; never imports torch."""
