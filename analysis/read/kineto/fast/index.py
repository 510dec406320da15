"""First stage of the scanner: finds strings and brackets, and checks that the text between them is JSON.

Input: the address of a window that begins at an event (or at white space before it), with 64 readable bytes after its
end. Output: the positions of quotes and brackets, and the first place that is not certainly valid JSON, except for what
the second stage checks. Rules between neighbouring tokens are bit operations on 64 bytes at a time.
"""

from typing import Any

import numpy as np
from numba import njit

from rankscope.analysis.read.kineto.fast.llvm import (
    any_of,
    between,
    byte,
    count_bits,
    kernel,
    lowest_bit,
    lowest_bit_or_64,
    put_int32,
    put_int64,
)

_quotes, _backslashes = any_of(b'"'), any_of(b"\\")
_curly, _square, _closing = any_of(b"{"), any_of(b"["), any_of(b"}]")
_commas, _colons, _blanks = any_of(b","), any_of(b":"), any_of(b" \t\r\n")
_digits, _letters = between(48, 57), between(97, 122, fold_case=True)
_dots, _minus, _plus, _zeros, _exponents = any_of(b"."), any_of(b"-"), any_of(b"+"), any_of(b"0"), any_of(b"eE")
_control, _high, _newlines = between(0, 31), between(128, 255), any_of(b"\n")

_ONE = np.uint64(1)
_TOP = np.uint64(63)
_NONE = np.uint64(0)
_AT_ONCE = 8  # positions; `positions` must have room for as many behind the last one

# What `index` reports, by position in `report`.
ODD_AT, HAS_ESCAPES, HAS_HIGH_BYTES, LINES = range(4)


@njit(inline="always")
def _after(ends: Any, carry: Any, blank: Any) -> Any:
    """Return the first byte after each of `ends` that is not white space, and whether one is still to come."""
    following = (ends << _ONE) | carry
    inside = following & blank
    total = blank + inside
    pending = (ends >> _TOP) | (_ONE if total < blank else _NONE)
    return (total & ~blank) | (following & ~blank), pending


@njit(inline="always")
def _is_digit(c: Any) -> Any:
    return c >= 48 and c <= 57


@njit(inline="always")
def _is_letter(c: Any) -> Any:
    return c | 32 >= 97 and c | 32 <= 122


@njit
def _is_word(base: Any, at: Any, end: Any) -> Any:
    """Return whether the token around the letter at `at` is true, false, null, or a number with an exponent."""
    c = byte(base, at)
    if c == 116:  # t
        text, length = 0x65757274, 4
    elif c == 110:  # n
        text, length = 0x6C6C756E, 4
    elif c == 102:  # f
        text, length = 0x736C6166, 5
    elif c == 101 or c == 69:
        return _is_number(base, at, end)
    else:
        return False
    for k in range(4):
        if byte(base, at + k) != (text >> (8 * k)) & 255:
            return False
    if length == 5 and byte(base, at + 4) != 101:
        return False
    return not _in_scalar(byte(base, at - 1) if at > 0 else 32) and not _in_scalar(byte(base, at + length))


@njit
def _has_odd_word(base: Any, at: Any, letters: Any, after_scalar: Any, end: Any) -> Any:
    """Return whether one of the words that begin at `letters` of the block at `at` is not one of JSON."""
    words = letters & ~(letters << _ONE)
    while words != 0:
        p = lowest_bit(words)
        words &= words - _ONE
        goes_on = p == 0 and at > 0 and _is_letter(byte(base, at - 1)) and after_scalar != 0
        if not goes_on and not _is_word(base, at + p, end):
            return True
    return False


@njit
def _in_scalar(c: Any) -> Any:
    return _is_digit(c) or c == 43 or c == 45 or c == 46 or (c | 32 >= 97 and c | 32 <= 122)


@njit
def _is_number(base: Any, at: Any, end: Any) -> Any:
    i = at
    while i > 0 and _in_scalar(byte(base, i - 1)):
        i -= 1
    if byte(base, i) == 45:
        i += 1
    if not _is_digit(byte(base, i)) or (byte(base, i) == 48 and _is_digit(byte(base, i + 1))):
        return False
    while _is_digit(byte(base, i)):
        i += 1
    if byte(base, i) == 46:
        i += 1
        if not _is_digit(byte(base, i)):
            return False
        while _is_digit(byte(base, i)):
            i += 1
    if i != at:
        return False
    i += 1
    if byte(base, i) == 43 or byte(base, i) == 45:
        i += 1
    begin = i
    while _is_digit(byte(base, i)):
        i += 1
    # Three exponent digits may exceed a double's range, which the msgspec reader refuses.
    return i > begin and i < begin + 3 and not _in_scalar(byte(base, i))


@njit
def _is_escape(base: Any, at: Any) -> Any:
    """Return whether the escape at the backslash `at` is a plain one; the msgspec reader handles surrogates."""
    c = byte(base, at + 1)
    if c == 117:  # u
        for k in range(2, 6):
            h = byte(base, at + k) | 32
            if not (_is_digit(byte(base, at + k)) or (h >= 97 and h <= 102)):
                return False
        return not ((byte(base, at + 2) | 32) == 100 and byte(base, at + 3) > 55)
    return c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116


@njit(inline="always")
def _put_bits(positions: Any, count: Any, first: Any, found: Any) -> Any:
    """Append the positions of the bits of `found`; return how many positions there are.

    Most blocks have about ten, in no regular number. Eight at a time, also if fewer are left, cost less than a branch
    for each that the processor guesses wrong. What is written behind the last one is overwritten by the next block.
    """
    after = count + count_bits(found)
    while found != 0:
        for k in range(_AT_ONCE):
            put_int32(positions, count + k, first + lowest_bit_or_64(found))
            found &= found - _ONE
        count += _AT_ONCE
    return after


@kernel(4)
def index(base: Any, length: Any, positions: Any, report: Any) -> Any:
    """Write the positions of quotes, brackets, and scalars that follow a comma; return how many there are."""
    count = lines = 0
    odd_at = length
    in_string = escaped = has_escapes = high = _NONE
    p_scalar = p_exponent = p_digit = p_minus = p_sign = p_letters = p_zero = p_dot = p_fraction = _NONE
    c_comma = c_colon = c_curly = c_quote = c_value = _NONE
    c_square = _ONE  # the window begins after the array's opening bracket
    for i in range(0, length, 64):
        lines += count_bits(_newlines(base, i))
        quote, backslash = _quotes(base, i), _backslashes(base, i)
        odd = _NONE
        if (backslash | escaped) != 0:
            has_escapes = _ONE
            skip = escaped
            escaped = _NONE
            backslash &= ~skip
            while backslash != 0:
                p = lowest_bit(backslash)
                if not _is_escape(base, i + p):
                    odd = _ONE
                if p == 63:
                    escaped = _ONE
                    break
                skip |= _ONE << np.uint64(p + 1)
                backslash &= ~(np.uint64(3) << np.uint64(p))
            quote &= ~skip
        string = quote
        string ^= string << np.uint64(1)
        string ^= string << np.uint64(2)
        string ^= string << np.uint64(4)
        string ^= string << np.uint64(8)
        string ^= string << np.uint64(16)
        string ^= string << np.uint64(32)
        string ^= in_string
        in_string = _NONE - (string >> _TOP)
        outside = ~(string | quote)
        high |= _high(base, i)
        odd |= _control(base, i) & string

        blank = _blanks(base, i) & outside
        comma, colon = _commas(base, i) & outside, _colons(base, i) & outside
        curly, square, closing = _curly(base, i) & outside, _square(base, i) & outside, _closing(base, i) & outside
        digit, dot = _digits(base, i) & outside, _dots(base, i) & outside
        scalar = digit | dot
        others = outside & ~(blank | comma | colon | curly | square | closing | scalar)
        letter = minus = plus = _NONE
        if others != 0:  # in few blocks
            letter, minus, plus = _letters(base, i) & outside, _minus(base, i) & outside, _plus(base, i) & outside
            scalar |= letter | minus | plus
            odd |= others & ~scalar

        # Which token may follow which.
        before = (scalar << _ONE) | p_scalar
        begins = scalar & ~before
        opened, closed = quote & string, quote & ~string
        value = opened | begins | curly | square
        after, c_comma = _after(comma, c_comma, blank)
        odd |= after & ~value
        alone = after & begins
        after, c_colon = _after(colon, c_colon, blank)
        odd |= after & ~value
        after, c_curly = _after(curly, c_curly, blank)
        odd |= after & ~(opened | closing)
        after, c_square = _after(square, c_square, blank)
        odd |= after & ~(value | closing)
        after, c_quote = _after(closed, c_quote, blank)
        odd |= after & ~(comma | colon | closing)
        # A scalar ends at the next byte that cannot belong to it.
        ended = (before & ~scalar) | (closing << _ONE) | c_value
        inside = ended & blank
        total = blank + inside
        odd |= ((total & ~blank) | (ended & ~blank)) & ~(comma | closing)
        c_value = (closing >> _TOP) | (_ONE if total < blank else _NONE)

        # Numbers without an exponent; numbers with one, and words, are checked one by one below.
        odd |= dot & ~((digit << _ONE) | p_digit)
        odd |= ((dot << _ONE) | p_dot) & ~digit
        fraction = (dot << _ONE) | p_fraction
        total = digit + (fraction & digit)
        odd |= (total | fraction) & ~digit & dot
        p_fraction = (dot >> _TOP) | (_ONE if total < digit else _NONE)
        if (others | p_letters) != 0:
            exponent = _exponents(base, i) & letter
            after_exponent = (exponent << _ONE) | p_exponent
            odd |= plus & ~after_exponent
            odd |= minus & ~(begins | after_exponent)
            odd |= ((minus << _ONE) | p_minus) & ~digit
            sign = minus & begins
            begins |= (sign << _ONE) | p_sign
            if letter != 0 and _has_odd_word(base, i, letter, p_scalar, length):
                odd = _ONE
            p_exponent, p_minus, p_sign = exponent >> _TOP, minus >> _TOP, sign >> _TOP
            p_letters = p_exponent | p_minus | p_sign
        leading = _zeros(base, i) & digit & begins
        odd |= ((leading << _ONE) | p_zero) & digit
        p_scalar, p_digit = scalar >> _TOP, digit >> _TOP
        p_zero, p_dot = leading >> _TOP, dot >> _TOP

        if odd != 0 and i < odd_at:
            odd_at = i
        count = _put_bits(positions, count, i, quote | curly | square | closing | alone)
    put_int64(report, ODD_AT, odd_at)
    put_int64(report, HAS_ESCAPES, np.int64(has_escapes))
    put_int64(report, HAS_HIGH_BYTES, np.int64(high != 0))
    put_int64(report, LINES, lines)
    return count


@kernel(2)
def count_lines(base: Any, length: Any) -> Any:
    """Return the number of line ends in the first `length` bytes; 64 more must be readable."""
    lines = 0
    whole = length - length % 64
    for i in range(0, whole, 64):
        lines += count_bits(_newlines(base, i))
    for i in range(whole, length):
        if byte(base, i) == 10:
            lines += 1
    return lines
