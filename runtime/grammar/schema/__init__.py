"""JSON Schema in, a grammar out that accepts nothing but what the schema accepts."""

from .grammar import SchemaGrammar, acceptance, schema_grammar
from .trouble import Malformed, SchemaTrouble, TooComplex, Unenforceable

__all__ = [
    "Malformed",
    "SchemaGrammar",
    "SchemaTrouble",
    "TooComplex",
    "Unenforceable",
    "acceptance",
    "schema_grammar",
]
