"""The primitives that ask the model: `gen`, `gen_int`, `gen_string` and `select`.

Arguments are checked here, where the statement stands, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, get_args

from espalier.runtime.messages import (
    Ebnf,
    JsonSchema,
    Lark,
    LogprobOptions,
    Regex,
    StructuralTag,
    Unenforced,
)
from espalier.runtime.programs.ir import ChoicesMethod
from espalier.runtime.sampling.params import MAX_CHOICES

from .expressions import Expr, Generation, Selection
from .sampling import SamplingArgs
from .typed import Reading, dtype_reading, json_object_text, json_reading

token_length_normalized: ChoicesMethod = "token_length_normalized"
greedy_token_selection: ChoicesMethod = "greedy_token_selection"
unconditional_likelihood_normalized: ChoicesMethod = "unconditional_likelihood_normalized"


def gen(
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool = False,
    top_logprobs_num: int = 0,
    dtype: type | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    ebnf: str | None = None,
    lark: str | None = None,
    structural_tag: str | Mapping[str, Any] | None = None,
    schema: Any = None,
    json_schema: Any = None,
    open_objects: bool | None = None,
    unenforced: Unenforced | None = None,
) -> Expr:
    """Let the model continue; the text becomes variable `name` and part of the state.

    Sampling arguments that are not given come from `run`, then from the defaults
    (`max_tokens=128, temperature=0`). At most one of `dtype`, `choices`, `regex`, `ebnf`,
    `lark`, `structural_tag` (a dict or JSON text) and `schema` (SGLang's name for it is
    `json_schema`) says what the output must be; with a type (`dtype`, or a type as `schema`:
    a pydantic model, a dataclass, `list[int]`, ...) the variable is of that type.
    `open_objects` lets objects have keys that the schema neither names nor forbids;
    `unenforced="validate"` generates where not all of it can be enforced, and has the text
    validated: the verdict is in the meta info. With `n` > 1 the variable is a list and the state
    is not extended. `choices` makes this a `select`. Log-probabilities are in the variable's meta
    info.
    """
    sampling = SamplingArgs(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop,
        stop_regex=stop_regex,
        stop_token_ids=stop_token_ids,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=logit_bias,
        seed=seed,
        ignore_eos=ignore_eos,
    )
    if choices is not None:
        others = {**sampling.given, "n": n, "dtype": dtype, "regex": regex, "ebnf": ebnf}
        others |= {"lark": lark, "structural_tag": structural_tag}
        others |= {"schema": schema, "json_schema": json_schema}
        others |= {"return_logprob": return_logprob or None}
        others |= {"open_objects": open_objects, "unenforced": unenforced}
        others.pop("temperature", None)
        _refuse_with_choices(others)
        return select(
            name,
            choices,
            temperature=temperature or 0,
            choices_method=choices_method or token_length_normalized,
        )
    if choices_method is not None:
        raise ValueError("choices_method has no effect without choices")
    reading = _reading(
        dtype=dtype,
        regex=regex,
        ebnf=ebnf,
        lark=lark,
        structural_tag=structural_tag,
        schema=schema,
        json_schema=json_schema,
    )
    reading = _loosened(reading, open_objects=open_objects, unenforced=unenforced)
    return Generation(
        name=_checked_name(name),
        sampling=sampling,
        n=_checked_int("n", 1 if n is None else n, 1, MAX_CHOICES),
        constraint=reading.constraint,
        logprobs=_logprobs(return_logprob, top_logprobs_num),
        parse=reading.parse,
    )


def gen_int(name: str | None = None, **arguments: Any) -> Expr:
    """`gen(name, dtype=int, ...)`."""
    return gen(name, dtype=int, **arguments)


def gen_string(name: str | None = None, **arguments: Any) -> Expr:
    """`gen(name, dtype=str, ...)`: plain text."""
    return gen(name, dtype=str, **arguments)


def select(
    name: str | None,
    choices: Sequence[str],
    *,
    temperature: float = 0,
    choices_method: ChoicesMethod = token_length_normalized,
) -> Expr:
    """Append the choice that the model finds most likely; it becomes variable `name`.

    Nothing is sampled, so only `temperature=0` makes sense. The variable's meta info has
    the score of each choice.
    """
    if temperature != 0:
        raise ValueError(f"select scores its choices: temperature must be 0, not {temperature!r}")
    if choices_method not in get_args(ChoicesMethod):
        raise ValueError(
            f"choices_method must be one of {', '.join(get_args(ChoicesMethod))}, "
            f"not {choices_method!r}"
        )
    return Selection(
        name=_checked_name(name), choices=_checked_choices(choices), method=choices_method
    )


def _reading(**arguments: object) -> Reading:
    """The reading that the one of the arguments asks for that is not None, if there is one."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"only one of {' and '.join(given)} can be given")
    for name, value in given.items():
        match name:
            case "dtype":
                return dtype_reading(value)
            case "regex":
                return Reading(Regex(_checked_text(name, value)), None)
            case "ebnf":
                return Reading(Ebnf(_checked_text(name, value)), None)
            case "lark":
                return Reading(Lark(_checked_text(name, value)), None)
            case "structural_tag":
                return Reading(StructuralTag(json_object_text(name, value)), None)
            case _:
                return json_reading(value)
    return Reading(None, None)


def _loosened(reading: Reading, *, open_objects: object, unenforced: Unenforced | None) -> Reading:
    """With what is said of a schema beside it."""
    if open_objects is None and unenforced is None:
        return reading
    if not isinstance(reading.constraint, JsonSchema):
        raise ValueError("open_objects and unenforced have no effect without schema or json_schema")
    if not (open_objects is None or isinstance(open_objects, bool)):
        raise TypeError(f"open_objects must be a bool, not {open_objects!r}")
    if unenforced not in (None, *get_args(Unenforced)):
        raise ValueError(f"unenforced must be 'refuse' or 'validate', not {unenforced!r}")
    schema = JsonSchema(reading.constraint.schema, bool(open_objects), unenforced or "refuse")
    return reading._replace(constraint=schema)


def _logprobs(return_logprob: object, top_logprobs_num: int) -> LogprobOptions | None:
    top = _checked_int("top_logprobs_num", top_logprobs_num, 0, 2**31 - 1)
    if not isinstance(return_logprob, bool):
        raise TypeError(f"return_logprob must be a bool, not {return_logprob!r}")
    if not return_logprob:
        if top:
            raise ValueError("top_logprobs_num has no effect without return_logprob=True")
        return None
    return LogprobOptions(top=top)


def _refuse_with_choices(arguments: Mapping[str, object]) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(f"gen(choices=...) only scores the choices: no {', '.join(given)}")


def _checked_name(name: object) -> str | None:
    if name is None or (isinstance(name, str) and name):
        return name
    raise TypeError(f"name must be a non-empty string or None, not {name!r}")


def _checked_text(argument: str, text: object) -> str:
    if isinstance(text, str):
        return text
    raise TypeError(f"{argument} must be a string, not {text!r}")


def _checked_int(argument: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{argument} must be from {low} to {high}, not {value}")
    return value


def _checked_choices(choices: object) -> tuple[str, ...]:
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise TypeError(f"choices must be a sequence of strings, not {choices!r}")
    texts = tuple(cast(Iterable[object], choices))
    if not texts:
        raise ValueError("choices must not be empty")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"choices must be non-empty strings, not {text!r}")
    return cast(tuple[str, ...], texts)
