"""`typing.TypedDict` in a form that pydantic takes on every Python that we support.

Before Python 3.12 pydantic refuses `typing.TypedDict` (it lacks what `typing_extensions`
records). The same fields as `typing_extensions.TypedDict` give the same schema.
"""

from __future__ import annotations

import sys
from types import GenericAlias, UnionType
from typing import Any, NotRequired, Required, Union, cast, get_args, get_origin, get_type_hints

import typing_extensions


def for_pydantic(type_: Any) -> Any:
    """`type_`, with the TypedDicts in it, and in its lists, dicts and unions, replaced."""
    if sys.version_info >= (3, 12):
        return type_
    if typing_extensions.is_typeddict(type_):
        return _rebuilt(type_)
    origin, arguments = get_origin(type_), get_args(type_)
    if isinstance(type_, GenericAlias):
        return origin[tuple(map(for_pydantic, arguments))]
    if origin in (Union, UnionType):
        return cast(Any, Union)[tuple(map(for_pydantic, arguments))]
    return type_


def _rebuilt(type_: Any) -> Any:
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(type_, include_extras=True).items():
        wrapper = get_origin(hint)
        if wrapper in (Required, NotRequired):
            [inner] = get_args(hint)
        else:
            wrapper = Required if name in type_.__required_keys__ else NotRequired
            inner = hint
        fields[name] = wrapper[for_pydantic(inner)]
    twin = cast(Any, typing_extensions.TypedDict)(type_.__name__, fields)
    twin.__doc__ = type_.__doc__
    return twin
