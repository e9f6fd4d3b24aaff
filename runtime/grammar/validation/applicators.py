"""Keywords that apply subschemas, to the value itself or to its parts, and note what they saw."""

from __future__ import annotations

from .outcome import Misshapen, Violation
from .patterns import found_in
from .reading import Json
from .validator import Keyword, Spot, Validator
from .values import count_of, list_of, names_of, object_of, text_of

# -- to the value itself -----------------------------------------------------------------------


def _ref(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    target = validator.document.resolve(text_of(argument), spot.owner)
    spot.seen.add(validator.follow(spot, target, value))


def _dynamic_ref(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    target = validator.document.resolve_dynamic(text_of(argument), spot.owner, spot.scope)
    spot.seen.add(validator.follow(spot, target, value))


def _recursive_ref(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if argument != "#":
        raise Misshapen("it must be '#'")
    target = validator.document.resolve_recursive(spot.owner, spot.scope)
    spot.seen.add(validator.follow(spot, target, value))


def _all_of(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    for schema in list_of(argument):
        spot.seen.add(validator.within(spot, schema, value))


def _any_of(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if _num_accepting(validator, argument, value, spot) == 0:
        raise Violation("anyOf: none of its schemas accepts this")


def _one_of(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    num = _num_accepting(validator, argument, value, spot)
    if num != 1:
        raise Violation(f"oneOf: {num or 'none'} of its schemas accept this, not one")


def _num_accepting(validator: Validator, argument: Json, value: Json, spot: Spot) -> int:
    """How many of the schemas accept the value; what those see is seen."""
    num = 0
    for schema in list_of(argument):
        seen = validator.accepts(spot, schema, value)
        if seen is not None:
            spot.seen.add(seen)
            num += 1
    return num


def _not(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if validator.accepts(spot, argument, value) is not None:
        raise Violation("not: its schema accepts this")


def _if(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    seen = validator.accepts(spot, argument, value)
    if seen is not None:
        spot.seen.add(seen)
    branch = "else" if seen is None else "then"
    if branch in spot.schema:
        spot.seen.add(validator.within(spot, spot.schema[branch], value))


def _dependent_schemas(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    for name, schema in object_of(argument).items():
        if isinstance(value, dict) and name in value:
            spot.seen.add(validator.within(spot, schema, value))


def _dependencies(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    """Until draft 7: what became `dependentRequired` and `dependentSchemas`."""
    for name, needed in object_of(argument).items():
        if not isinstance(value, dict) or name not in value:
            continue
        if isinstance(needed, list):
            for other in names_of(needed):
                if other not in value:
                    raise Violation(f"dependencies: {name!r:.100} needs {other!r:.100}")
        else:
            spot.seen.add(validator.within(spot, needed, value))


# -- to the members of an object ---------------------------------------------------------------


def _properties(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    schemas = object_of(argument)
    if isinstance(value, dict):
        for name, schema in schemas.items():
            if name in value:
                validator.part(spot, schema, value[name], name)
                spot.seen.keys.add(name)


def _pattern_properties(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    schemas = object_of(argument)
    if isinstance(value, dict):
        for pattern, schema in schemas.items():
            for name, child in value.items():
                if found_in(pattern, name):
                    validator.part(spot, schema, child, name)
                    spot.seen.keys.add(name)


def _additional_properties(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    declared = object_of(spot.schema.get("properties", {}))
    patterns = object_of(spot.schema.get("patternProperties", {}))
    if isinstance(value, dict):
        for name, child in value.items():
            if name not in declared and not any(found_in(each, name) for each in patterns):
                validator.part(spot, argument, child, name)
                spot.seen.keys.add(name)


def _property_names(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if isinstance(value, dict):
        for name in value:
            validator.part(spot, argument, name, name)


def _unevaluated_properties(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if isinstance(value, dict):
        for name in value.keys() - spot.seen.keys:
            validator.part(spot, argument, value[name], name)
        spot.seen.keys.update(value)


# -- to the items of an array ------------------------------------------------------------------


def _prefix_items(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    schemas = list_of(argument)
    if isinstance(value, list):
        for index, (schema, item) in enumerate(zip(schemas, value, strict=False)):
            validator.part(spot, schema, item, str(index))
            spot.seen.indices.add(index)


def _items(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if isinstance(argument, list):  # until draft 2019-09: what became `prefixItems`
        _prefix_items(validator, argument, value, spot)
    else:
        num_before = len(list_of(spot.schema.get("prefixItems", [])))
        _items_from(num_before, validator, argument, value, spot)


def _additional_items(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    """Until draft 2019-09: the items after those that a list under `items` is for."""
    before = spot.schema.get("items")
    if isinstance(before, list):
        _items_from(len(before), validator, argument, value, spot)


def _items_from(start: int, validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if isinstance(value, list):
        for index in range(start, len(value)):
            validator.part(spot, argument, value[index], str(index))
            spot.seen.indices.add(index)


def _contains(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    least = count_of(spot.schema["minContains"]) if "minContains" in spot.schema else 1
    most = count_of(spot.schema["maxContains"]) if "maxContains" in spot.schema else None
    if not isinstance(value, list):
        return
    found = {
        index
        for index, item in enumerate(value)
        if validator.accepts(spot, argument, item) is not None
    }
    if len(found) < least:
        raise Violation(f"contains: {len(found)} items are accepted, at least {least} must be")
    if most is not None and len(found) > most:
        raise Violation(f"maxContains: {len(found)} items are accepted, at most {most} may be")
    spot.seen.indices |= found


def _unevaluated_items(validator: Validator, argument: Json, value: Json, spot: Spot) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if index not in spot.seen.indices:
                validator.part(spot, argument, item, str(index))
        spot.seen.indices.update(range(len(value)))


APPLICATORS: dict[str, Keyword] = {
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _recursive_ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "unevaluatedProperties": _unevaluated_properties,
    "prefixItems": _prefix_items,
    "items": _items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "unevaluatedItems": _unevaluated_items,
}
