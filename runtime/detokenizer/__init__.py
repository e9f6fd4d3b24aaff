"""Token ids to text, byte-exact and incremental; never imports torch."""
