"""An exact algebra of regular languages over code points or bytes."""

from .charset import CharSet
from .construct import (
    ANY_CHAR,
    EPSILON,
    NOTHING,
    SOME_TEXT,
    TEXT,
    alt,
    automaton,
    both,
    chars,
    literal,
    negated,
    nonempty,
    repeat,
    seq,
)
from .derivatives import DEFAULT_BUDGET, Derivatives, derivative, matches
from .dfa import Dfa, minimized
from .ebnf_syntax import ebnf_expression, ebnf_rules
from .elimination import expression_of
from .errors import NotPrintable, PatternError, TooLarge
from .lengths import width, with_length
from .nodes import Alt, Automaton, Both, Chars, Epsilon, Negated, Regex, Repeat, Seq, parts
from .pattern import search_language, whole_language
from .prefixes import prefixes
from .questions import are_disjoint, finite_strings, includes, is_empty, shortest, to_dfa
from .re2_syntax import re2_source, search_pattern
from .rust_syntax import lark_rules, lark_terminals, rust_regex
from .spelling import FREE_CONTENT, all_content, json_spelled
from .terms import from_terms, to_terms
from .utf8 import utf8_bytes

__all__ = [
    "ANY_CHAR",
    "DEFAULT_BUDGET",
    "EPSILON",
    "FREE_CONTENT",
    "NOTHING",
    "SOME_TEXT",
    "TEXT",
    "Alt",
    "Automaton",
    "Both",
    "CharSet",
    "Chars",
    "Derivatives",
    "Dfa",
    "Epsilon",
    "Negated",
    "NotPrintable",
    "PatternError",
    "Regex",
    "Repeat",
    "Seq",
    "TooLarge",
    "all_content",
    "alt",
    "are_disjoint",
    "automaton",
    "both",
    "chars",
    "derivative",
    "ebnf_expression",
    "ebnf_rules",
    "expression_of",
    "finite_strings",
    "from_terms",
    "includes",
    "is_empty",
    "json_spelled",
    "lark_rules",
    "lark_terminals",
    "literal",
    "matches",
    "minimized",
    "negated",
    "nonempty",
    "parts",
    "prefixes",
    "re2_source",
    "repeat",
    "rust_regex",
    "search_language",
    "search_pattern",
    "seq",
    "shortest",
    "to_dfa",
    "to_terms",
    "utf8_bytes",
    "whole_language",
    "width",
    "with_length",
]
