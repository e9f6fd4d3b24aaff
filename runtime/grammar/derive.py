"""Constraints as grammars of ours: which there is for what callers ask, and in whose words."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRequest
from ..messages import Choice, JsonSchema, Regex
from .cfg import Grammar, Lexeme
from .regular import PatternError, TooLarge, alt, is_empty, literal, whole_language
from .schema.grammar import schema_grammar
from .schema.trouble import SchemaTrouble


@dataclass(frozen=True, slots=True)
class Derived:
    """notes: what it is narrower in than what was asked for. has_free_keys: its objects have keys
    that are not named."""

    grammar: Grammar
    notes: tuple[str, ...] = ()
    has_free_keys: bool = False


def derived(constraint: JsonSchema | Regex | Choice) -> Derived:
    """Raises `InvalidRequest` where nothing that is asked for can be written, or not by us."""
    try:
        match constraint:
            case JsonSchema(schema):
                found = schema_grammar(schema)
                return Derived(found.grammar, found.notes, found.has_free_keys)
            case Regex(pattern):
                return Derived(_of(Lexeme(whole_language(pattern)), "regex"))
            case Choice(choices):
                return Derived(_of(Lexeme(alt(*map(literal, choices))), "choices"))
    except SchemaTrouble as trouble:
        raise InvalidRequest(f"json_schema: {trouble}", param="json_schema") from None
    except PatternError as error:
        raise InvalidRequest(f"regex: {error}", param="regex") from None
    except TooLarge as error:
        raise InvalidRequest(f"the constraint is too large: {error}", param=None) from None


def _of(text: Lexeme, param: str) -> Grammar:
    if is_empty(text.language):
        raise InvalidRequest(f"{param}: no text at all matches", param=param)
    return Grammar({"r0": text}, "r0")
