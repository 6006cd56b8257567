import pytest

from benchmarks.evals.answers import final_boxed, final_number, same_expression, same_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 and 13 make 25. So 7 \n#### 1,234.5", "1,234.5"),
        ("first 3, then $40.", "$40"),
        ("it is \\boxed{17}, not 18", "17"),
        ("-5", "-5"),
        ("it is -$3.50", "-$3.50"),
        (".5", ".5"),
        ("= .25 l", ".25"),
        ("10-12", "12"),
        ("n-1", "1"),
        ("\\boxed{-\\frac{1}{2}}", "-1/2"),
        ("#### \\dfrac{3}{4}", "3/4"),
        ("none at all", ""),
        ("#### nothing", ""),
    ],
)
def test_the_final_number(text, number):
    assert final_number(text) == number


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1} and \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{unfinished {", ""),
        ("no box", ""),
    ],
)
def test_the_final_box(text, inside):
    assert final_boxed(text) == inside


@pytest.mark.parametrize(
    ("left", "right"), [("1,000", "1000.0"), ("$5", "5"), ("1/2", "0.5"), ("42.", "42"), (".5", "1/2"), ("-1/2", "-.5")]
)
def test_one_number_written_twice(left, right):
    assert same_number(left, right)


@pytest.mark.parametrize(("left", "right"), [("", ""), ("1/0", "1/0"), ("12", "13"), ("x", "x")])
def test_what_is_no_number_or_another(left, right):
    assert not same_number(left, right)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("\\dfrac{1}{2}", "0.5", True),
        ("\\frac12", "\\frac{1}{2}", True),
        ("-\\frac{1}{2}", "-0.5", True),
        ("-\\frac{1}{2}", "0.5", False),
        ("$x^2 + 1$", "x^2+1", True),
        ("90^\\circ", "90", True),
        ("\\left( 1, 2 \\right)", "(1,2)", True),
        ("5\\text{ cm}", "5cm", True),
        ("(x-3)(x+3)", "(x+3)(x-3)", False),
        ("", "", False),
    ],
)
def test_expressions(left, right, same):
    assert same_expression(left, right) == same
