"""Where models come from: the catalogue, pulling, and resolving a name to files."""
