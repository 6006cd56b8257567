"""The final answer in a worked solution, and whether two of them are the same."""

import re
from fractions import Fraction

# A minus behind a number or a name is a dash or a difference, as in 10-12.
NUMBER = re.compile(r"(?:(?<![\w)}])-)?\$?(?:\d[\d,]*(?:\.\d+)?|(?<!\w)\.\d+)(?:/\d+)?")
FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
BOXED = "\\boxed{"


def final_number(text: str) -> str:
    """The last number behind the last "####", else in the last \\boxed{...}, else in all of it; "" for none."""
    _, marked, behind = text.rpartition("####")
    numbers = NUMBER.findall(FRACTION.sub(r"\1/\2", behind if marked else final_boxed(text) or text))
    return numbers[-1] if numbers else ""


def final_boxed(text: str) -> str:
    """What is in the last \\boxed{...}, braces within it balanced; "" where there is none, or it does not end."""
    begin = text.rfind(BOXED)
    if begin < 0:
        return ""
    begin += len(BOXED)
    depth = 1
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place]
    return ""


def same_number(left: str, right: str) -> bool:
    """True for two ways to write one number: 1,000 and 1000.0, 1/2 and 0.5."""
    a, b = _value(left), _value(right)
    return a is not None and a == b


def same_expression(left: str, right: str) -> bool:
    """True for the same number, or the same LaTeX but for what does not change its meaning."""
    a, b = normal_expression(left), normal_expression(right)
    return bool(a) and (a == b or same_number(a, b))


def normal_expression(text: str) -> str:
    """LaTeX without space, sizes, units in text, and with plain fractions of single characters written out."""
    text = text.strip().strip("$").rstrip(".")
    for old, new in (("dfrac", "frac"), ("tfrac", "frac"), ("\\left", ""), ("\\right", ""), ("\\!", ""), ("\\%", "%")):
        text = text.replace(old, new)
    text = re.sub(r"\\(?:text|mathrm|mbox)\{\s*([^{}]*?)\s*\}", r"\1", text)
    text = re.sub(r"\\[,;: ]|\s|~|\^\\circ|\^\{\\circ\}|\\\$", "", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    return re.sub(r"^(-?)\\frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", text)


def _value(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "").replace("$", "").rstrip("%."))
    except (ValueError, ZeroDivisionError):
        return None
