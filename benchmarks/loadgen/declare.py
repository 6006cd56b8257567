"""Options declared once, as the fields of a struct: command line, checks and frozen form come from there."""

import json
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

Options = TypeVar("Options", bound=msgspec.Struct)

SEPARATORS = {str: "=", float: ":"}  # of a key and its value on the command line, by the type of the value


class BadOption(Exception):
    """An option's value cannot be used. The message names the option as it is written on the command line."""


def option(group: str, help: str, *aliases: str, choices: Iterable[str] | None = None) -> msgspec.Meta:
    """The last annotation of a field that is an option. Limits of numbers belong to its type."""
    return msgspec.Meta(description=help, extra={"group": group, "aliases": aliases, "choices": choices})


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_arguments(parser: ArgumentParser, struct: type[msgspec.Struct]) -> None:
    """One argument for each field. What is not given is not in the namespace, so that defaults stay in one place."""
    groups: dict[str, Any] = {}
    defaults = {field.name: field for field in msgspec.structs.fields(struct)}
    for name, (hint, meta) in _declared(struct).items():
        extra = meta.extra or {}
        if extra["group"] not in groups:
            groups[extra["group"]] = parser.add_argument_group(extra["group"])
        default = defaults[name].default
        shown = "" if default in (None, "", False, True, msgspec.NODEFAULT) else f" ({default})"
        text = ((meta.description or "") + shown).replace("%", "%%")
        groups[extra["group"]].add_argument(
            flag(name), *extra["aliases"], dest=name, default=SUPPRESS, help=text, **_argument(hint, extra["choices"])
        )


def read(struct: type[Options], values: Mapping[str, Any]) -> Options:
    """The options from command line or JSON `values`; those that are no field of `struct` are left alone.

    Raises BadOption.
    """
    declared = _declared(struct)
    given = {name: value for name, value in values.items() if name in declared and value is not None}
    for name, value in given.items():
        choices = (declared[name][1].extra or {})["choices"]
        if choices and value not in choices:
            raise BadOption(f"{flag(name)}: {value!r} is none of {', '.join(choices)}")
    try:
        return msgspec.convert(given, struct, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).rpartition(" - at `$.")
        name = path.rstrip("`").partition("[")[0]
        raise BadOption(f"{flag(name)}: {message[:1].lower()}{message[1:]}" if message else str(error)) from None


def known_names(struct: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(_declared(struct))


def to_json(options: msgspec.Struct) -> dict[str, Any]:
    """By option name, as JSON can hold it: infinity is written "inf"."""
    values: dict[str, Any] = msgspec.to_builtins(options)
    return {name: "inf" if value == inf else value for name, value in values.items()}


def to_arguments(struct: type[msgspec.Struct], values: Mapping[str, Any]) -> list[str]:
    """The command line that gives `values` again, for whoever starts the same command as a process of its own."""
    words: list[str] = []
    for name, (hint, _) in _declared(struct).items():
        value = values.get(name)
        kind, value_type = _kind(hint)
        if value is None or value == {} or value == []:
            continue
        if isinstance(value, dict) and kind is not dict:
            words.append(f"{flag(name)}={json.dumps(value)}")
        elif kind is bool:
            words.append(flag(name) if value else f"--no-{name.replace('_', '-')}")
        elif kind is dict and value_type in SEPARATORS:
            pairs = [f"{key}{SEPARATORS[value_type]}{item}" for key, item in value.items()]
            words += [flag(name), *pairs]
        elif kind is dict:
            words += [flag(name), json.dumps(value)]
        elif kind is list:
            words += [flag(name), *map(str, value)]
        elif value != "":
            words.append(f"{flag(name)}={value}")
    return words


def _argument(hint: Any, choices: Iterable[str] | None) -> dict[str, Any]:
    """What argparse needs for a field; numbers stay text, so that `read` refuses all bad values in one way."""
    kind, value_type = _kind(hint)
    if kind is bool:
        return {"action": BooleanOptionalAction}
    if kind is dict and value_type in SEPARATORS:
        return {"action": _Pairs, "nargs": "+", "separator": SEPARATORS[value_type]}
    if kind is dict:
        return {"type": _json_object, "metavar": "JSON"}
    if kind is list:
        return {"nargs": "+", "action": "extend"}
    if any(get_origin(part) is dict for part in get_args(hint)):
        return {"type": _json_object_or_text, "metavar": f"{kind.__name__.upper()}|JSON"}
    return {"metavar": "{" + ",".join(choices) + "}"} if choices else {"metavar": kind.__name__.upper()}


def _kind(hint: Any) -> tuple[type, Any]:
    """The plain type of a field, and for a mapping the type of its values. `X | None` counts as X."""
    if get_origin(hint) is None:
        return hint, None
    if get_origin(hint) in (dict, list):
        return get_origin(hint), get_args(hint)[-1]
    return _kind(next(part for part in get_args(hint) if part is not type(None)))


def _declared(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, msgspec.Meta]]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: (get_args(hint)[0], get_args(hint)[-1]) for name, hint in hints.items()}


class _Pairs(Action):
    """`K=V` words, of one or several uses of the option, as one mapping."""

    def __init__(self, *, separator: str, **rules: Any) -> None:
        super().__init__(**rules, metavar=f"K{separator}V")
        self._separator = separator

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        pairs = dict(getattr(namespace, self.dest, {}))
        for word in values:
            key, separator, value = word.partition(self._separator)
            if not (key and separator):
                raise ArgumentError(self, f"{word!r} is not of the form KEY{self._separator}VALUE")
            pairs[key] = value
        setattr(namespace, self.dest, pairs)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"is no JSON object: {text}")
    return value


def _json_object_or_text(text: str) -> dict[str, Any] | str:
    return _json_object(text) if text.lstrip().startswith("{") else text
