"""Constraints as grammars of ours: which there is for what callers ask, and in whose words."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRequest
from ..messages import Choice, JsonSchema, Regex
from .cfg import Grammar, Lexeme
from .regular import PatternError, TooLarge, alt, is_empty, literal, whole_language
from .schema.grammar import schema_grammar
from .schema.trouble import SchemaTrouble
from .schema.weakening import weakened


@dataclass(frozen=True, slots=True)
class Derived:
    """notes: what it is narrower in than what was asked for, and what it does not enforce, if it
    is not `is_whole`. has_free_keys: its objects have keys that are not named."""

    grammar: Grammar
    notes: tuple[str, ...] = ()
    has_free_keys: bool = False
    is_whole: bool = True


def derived(constraint: JsonSchema | Regex | Choice) -> Derived:
    """Raises `InvalidRequest` where nothing that is asked for can be written, or not by us."""
    try:
        match constraint:
            case JsonSchema(unenforced="validate"):
                return _weakened(constraint)
            case JsonSchema(schema):
                found = schema_grammar(schema, open_objects=constraint.open_objects)
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


def _weakened(constraint: JsonSchema) -> Derived:
    found, unenforced = weakened(constraint.schema, open_objects=constraint.open_objects)
    notes = (*unenforced, *found.notes)
    return Derived(found.grammar, notes, found.has_free_keys, is_whole=not unenforced)


def _of(text: Lexeme, param: str) -> Grammar:
    if is_empty(text.language):
        raise InvalidRequest(f"{param}: no text at all matches", param=param)
    return Grammar({"r0": text}, "r0")
