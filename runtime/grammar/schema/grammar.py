"""From the facts of a schema to a grammar: one rule for each conjunction of subschemas.

The layout is compact JSON. What the grammar leaves out of what the schema allows is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import thread_time

from ..cfg import NEVER, Call, Expr, Grammar, Lexeme, Text, choice
from ..regular import (
    FREE_CONTENT,
    TEXT,
    Regex,
    TooLarge,
    finite_strings,
    json_spelled,
    literal,
    seq,
)
from ..walk import Acceptance
from .arrays import array_expr
from .branches import Branches
from .document import Document
from .facts import ANYTHING, NUMBERS, Conjunction, Facts, Frozen, conjunct
from .members import Holding, strings_of
from .numeric import number_language
from .objects import object_expr
from .trouble import ROOT, Pointer, TooComplex, Unsatisfiable
from .values import frozen, read_json, spelled, type_of

MAX_RULES = 20_000
NORMALISE_S = 2.0
_MAX_VALUES = 64
_CLOCK_EVERY = 256  # the clock of a thread takes up to a millisecond to read

FREE_STRING = seq(literal('"'), FREE_CONTENT, literal('"'))
"""Any string, with any valid escapes."""


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """notes: what the grammar narrows, in words. has_free_keys: it has keys that no schema names,
    which it can't keep from standing twice in an object."""

    grammar: Grammar
    notes: tuple[str, ...]
    has_free_keys: bool


def schema_grammar(text: str, *, open_objects: bool = False) -> SchemaGrammar:
    """The grammar of the JSON Schema in `text`; raises `SchemaTrouble` where there is none.

    open_objects: keys that a schema does not name are allowed where it does not forbid them.
    """
    return grammar_of(read_json(text), open_objects=open_objects)


def grammar_of(schema: object, *, open_objects: bool = False) -> SchemaGrammar:
    """`schema_grammar` of a schema that was read."""
    document = Document(schema)
    builder = _Builder(document, open_objects)
    try:
        return builder.built()
    except RecursionError:
        raise TooComplex(ROOT, "nested too deeply") from None
    except TooLarge as error:
        raise TooComplex(builder.pointer, str(error)) from None


class _Builder:
    """The `objects.Builder` of one document."""

    def __init__(self, document: Document, open_objects: bool) -> None:
        self.open_objects = open_objects
        self.has_free_keys = False
        self.pointer: Pointer = ROOT
        self._document = document
        self._deadline = thread_time() + NORMALISE_S
        self._branches = Branches(document, self._deadline)
        self.holding = Holding(self._branches.of)
        self._rules: dict[str, Expr] = {}
        self._named: dict[Conjunction, Call] = {}
        self._todo: list[tuple[Call, Conjunction]] = []
        self._notes: dict[str, None] = {}
        self._finite: dict[Conjunction, list[object] | None] = {}

    def built(self) -> SchemaGrammar:
        root = self.value(conjunct(self._document.root))
        if root == NEVER:
            raise Unsatisfiable(ROOT, "nothing is valid against it")
        assert isinstance(root, Call)
        while self._todo:
            call, conjunction = self._todo.pop()
            self.define(call, self._expr_of(conjunction))
        grammar = Grammar(self._rules, root.rule).pruned()
        if grammar is None:
            raise Unsatisfiable(ROOT, "nothing is valid against it")
        notes = (*self._notes, *self._branches.notes)
        return SchemaGrammar(grammar, notes, self.has_free_keys)

    # -- what the parts use --------------------------------------------------------------------

    def value(self, conjunction: Conjunction) -> Expr:
        call = self._named.get(conjunction)
        if call is None:
            call = self._named[conjunction] = self.reserve()
            self._todo.append((call, conjunction))
        return call

    def rule(self, expr: Expr) -> Call:
        call = self.reserve()
        self.define(call, expr)
        return call

    def reserve(self) -> Call:
        if len(self._rules) >= MAX_RULES:
            raise TooComplex(self.pointer, f"its grammar has more than {MAX_RULES} rules")
        if len(self._rules) % _CLOCK_EVERY == 0 and thread_time() > self._deadline:
            raise TooComplex(self.pointer, f"it takes longer than {NORMALISE_S:g} s to read")
        call = Call(f"r{len(self._rules)}")
        self._rules[call.rule] = NEVER
        return call

    def define(self, call: Call, expr: Expr) -> None:
        self._rules[call.rule] = expr

    def key_language(self, conjunction: Conjunction) -> Regex:
        return self._branches.string_language(conjunction)

    def finite_values(self, conjunction: Conjunction) -> list[object] | None:
        """All values, if there are at most a few."""
        if conjunction not in self._finite:
            self._finite[conjunction] = self._values_of(conjunction)
        return self._finite[conjunction]

    def note(self, text: str) -> None:
        self._notes[text] = None

    def rank(self, name: str) -> int:
        return self._document.names.get(name, len(self._document.names))

    # -- values --------------------------------------------------------------------------------

    def _values_of(self, conjunction: Conjunction) -> list[object] | None:
        found: list[object] = []
        for facts in self._branches.of(conjunction):
            values = self._values_of_facts(facts)
            if values is None or len(found) + len(values) > _MAX_VALUES:
                return None
            found += values
        return found

    def _values_of_facts(self, facts: Facts) -> list[object] | None:
        if facts.values is not None:
            return list(self.holding.values(facts))
        if facts.types - {"null", "boolean", "string"}:
            return None
        found: list[object] = []
        if "null" in facts.types:
            found.append(None)
        if "boolean" in facts.types:
            found += [False, True]
        if "string" in facts.types:
            texts = finite_strings(strings_of(facts), _MAX_VALUES)
            if texts is None:
                return None
            found += texts
        listed = replace(facts, values=None)
        return [value for value in found if self.holding.facts_hold(listed, _frozen(value))]

    def _expr_of(self, conjunction: Conjunction) -> Expr:
        if conjunction != ANYTHING:
            self.pointer = self._document[min(conjunction)[0]].pointer
        return choice(*(self._facts_expr(facts) for facts in self._branches.of(conjunction)))

    def _facts_expr(self, facts: Facts) -> Expr:
        if facts.values is not None:
            return choice(*(Text(spelled(value)) for value in self.holding.values(facts)))
        return choice(*self._by_type(facts))

    def _by_type(self, facts: Facts) -> Iterator[Expr]:
        excluded = {value.key for value in facts.excluded}
        for value, type_ in ((None, "null"), (True, "boolean"), (False, "boolean")):
            if type_ in facts.types and _frozen(value).key not in excluded:
                yield Text(spelled(value))
        if facts.types & NUMBERS:
            self.note("numbers have one spelling, and a bounded number of digits")
            yield Lexeme(number_language(facts))
        if "string" in facts.types:
            yield Lexeme(self._string(facts))
        for part in self._containers(facts):
            if "array" in part.types:
                yield array_expr(part.arrays, self)
            if "object" in part.types:
                yield object_expr(part.objects, self)

    def _containers(self, facts: Facts) -> Iterator[Facts]:
        """With the arrays and objects that are excluded written as what they are not."""
        facts = replace(facts, types=facts.types & {"array", "object"})
        exclusion = self._branches.exclusion(facts)
        for part in self._branches.of(exclusion):
            found = facts & part
            if found.types:
                yield found

    def _string(self, facts: Facts) -> Regex:
        strings = strings_of(facts)
        if strings == TEXT:
            return FREE_STRING
        self.note("each character of a restricted string has one spelling")
        return seq(literal('"'), json_spelled(strings), literal('"'))


def _frozen(value: object) -> Frozen:
    return Frozen(frozen(value), type_of(value), value)


def acceptance(text: str, *, open_objects: bool = False) -> Acceptance:
    """What the grammar of a schema accepts, without an engine."""
    return Acceptance(schema_grammar(text, open_objects=open_objects).grammar)
