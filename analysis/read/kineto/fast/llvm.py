"""The few machine operations that numba lacks: raw loads and stores, and comparing 64 bytes at once.

Addresses are passed as integers, because array arguments to inlined helpers cost atomic reference counts. LLVM maps
the vectors to whatever the processor has.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def kernel(arguments: int) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of `arguments` int64 that returns one, for `machine_code`: nothing of Python is around it."""
    signature = f"int64({', '.join(['int64'] * arguments)})"
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # numba's stubs lack them
    compiled: Callable[[Callable[..., Any]], Any] = njit(signature, **options)
    return compiled


WIDTH = 64  # bytes compared at once: one bit each in a 64-bit mask
_I64 = ir.IntType(64)


def _pointer(builder: Any, base: Any, index: Any, kind: Any, scale: int) -> Any:
    if scale != 1:
        index = builder.mul(index, ir.Constant(_I64, scale))
    return builder.inttoptr(builder.add(base, index), kind.as_pointer())


def _load(bits: int, result: Any, scale: int, *, signed: bool = False) -> Any:
    @intrinsic
    def load(context: Any, base: Any, index: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], args[1], ir.IntType(bits), scale))
            value.align = 1
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return result(types.int64, types.int64), generate

    return load


def _store(bits: int, kind: Any, scale: int) -> Any:
    @intrinsic
    def store(context: Any, base: Any, index: Any, value: Any) -> Any:
        def generate(ctx: Any, builder: Any, __: Any, args: Any) -> Any:
            kept = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))
            builder.store(kept, _pointer(builder, args[0], args[1], ir.IntType(bits), scale)).align = 1
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64, kind), generate

    return store


byte = _load(8, types.int64, 1)  # the byte at base + index
word = _load(64, types.uint64, 1)  # the 8 bytes at base + index
int32 = _load(32, types.int64, 4, signed=True)  # element `index` of an int32 array
int64 = _load(64, types.int64, 8)
uint64 = _load(64, types.uint64, 8)
put_byte = _store(8, types.int64, 1)
put_int32 = _store(32, types.int64, 4)
put_int64 = _store(64, types.int64, 8)
put_uint64 = _store(64, types.uint64, 8)

_VECTOR = ir.VectorType(ir.IntType(8), WIDTH)


def _constant(value: int) -> Any:
    return ir.Constant(_VECTOR, [ir.Constant(ir.IntType(8), value)] * WIDTH)


def _mask(test: Callable[[Any, Any], Any]) -> Any:
    """Make a function (base, index) -> mask of those of the next 64 bytes for which `test` holds."""

    @intrinsic
    def mask(context: Any, base: Any, index: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
            vector = builder.load(_pointer(builder, args[0], args[1], _VECTOR, 1))
            vector.align = 1
            return builder.bitcast(test(builder, vector), _I64)

        return types.uint64(types.int64, types.int64), generate

    return mask


def any_of(characters: bytes) -> Any:
    """Make a mask function for bytes that are one of `characters`."""

    def test(builder: Any, vector: Any) -> Any:
        found = None
        for character in characters:
            equal = builder.icmp_unsigned("==", vector, _constant(character))
            found = equal if found is None else builder.or_(found, equal)
        return found

    return _mask(test)


def between(first: int, last: int, *, fold_case: bool = False) -> Any:
    """Make a mask function for bytes in first..last; with `fold_case`, upper-case letters count as lower-case."""

    def test(builder: Any, vector: Any) -> Any:
        if fold_case:
            vector = builder.or_(vector, _constant(0x20))
        return builder.icmp_unsigned("<=", builder.sub(vector, _constant(first)), _constant(last - first))

    return _mask(test)


def _unary(name: str, extra: Sequence[Any] = ()) -> Any:
    @intrinsic
    def operation(context: Any, value: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
            kind = ir.FunctionType(_I64, [_I64, *(constant.type for constant in extra)])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [args[0], *extra])

        return types.int64(types.uint64), generate

    return operation


lowest_bit = _unary("llvm.cttz.i64", [ir.Constant(ir.IntType(1), 1)])  # position; the value must not be 0
lowest_bit_or_64 = _unary("llvm.cttz.i64", [ir.Constant(ir.IntType(1), 0)])  # 64 if the value is 0
count_bits = _unary("llvm.ctpop.i64")
