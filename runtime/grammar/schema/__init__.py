"""JSON Schema in, a grammar out that accepts nothing but what the schema accepts."""
