"""ONNX graphs written as expressions: `(x @ w + b).tanh()` adds three nodes.

A Python number or a NumPy array among the operands becomes a constant: an int is int64, a float float32. Loops are
written as functions of what they carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
"""The version of the operators: the first that has LayerNormalization."""
IR_VERSION = 8
"""The version of the file format that goes with it."""
FLOAT, DOUBLE, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL
INTEGER, INTEGER_32 = TensorProto.INT64, TensorProto.INT32

Operand: TypeAlias = "Value | npt.NDArray[Any] | int | float"


class Value:
    """The result of a node, or an input or constant of the graph."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def op(self, kind: str, *others: Operand, **attributes: Any) -> Value:
        """Return the result of an operator whose first input is this value."""
        return self.graph.op(kind, self, *others, **attributes)

    def __add__(self, other: Operand) -> Value:
        return self.op("Add", other)

    def __sub__(self, other: Operand) -> Value:
        return self.op("Sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self.op("Mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self.op("Div", other)

    def __matmul__(self, other: Operand) -> Value:
        return self.op("MatMul", other)

    def __lt__(self, other: Operand) -> Value:
        return self.op("Less", other)

    def __and__(self, other: Operand) -> Value:
        return self.op("And", other)

    def __rsub__(self, other: Operand) -> Value:
        return self.graph.op("Sub", other, self)

    def tanh(self) -> Value:
        """Return the hyperbolic tangent."""
        return self.op("Tanh")

    def sigmoid(self) -> Value:
        """Return the logistic function, to within 1e-7."""
        return self.op("Sigmoid")

    def exact_sigmoid(self) -> Value:
        """Return the logistic function with all its digits where it is small."""
        return ((self * -1.0).op("Exp") + 1.0).op("Reciprocal")

    def log1p(self) -> Value:
        """Return log(1 + x) to the last digit, for which it takes float64.

        It is right for small x, too: u = 1 + x is rounded, and x log(u) / (u - 1) makes up for it.
        """
        x, one = self.cast(DOUBLE), np.array(1.0)
        u = x + one
        rounded = u - one
        is_nothing = rounded.op("Equal", np.array(0.0))
        return self.graph.where(is_nothing, x, x * u.op("Log") / self.graph.where(is_nothing, one, rounded)).cast(FLOAT)

    def expm1(self) -> Value:
        """Return e^x - 1, right for small x."""
        return (self * 0.5).tanh() * (self.op("Exp") + 1.0)

    def cast(self, kind: int) -> Value:
        """Return the same numbers of another kind."""
        return self.op("Cast", to=kind)

    def transpose(self, *order: int) -> Value:
        """Return the value with its axes in another order."""
        return self.op("Transpose", perm=list(order))

    def squeeze(self, axis: int) -> Value:
        """Return the value without an axis of length 1."""
        return self.op("Squeeze", np.array([axis]))

    def unsqueeze(self, *axes: int) -> Value:
        """Return the value with new axes of length 1."""
        return self.op("Unsqueeze", np.array(axes))

    def reshape(self, *shape: int) -> Value:
        """Return the value in another shape; 0 keeps an axis and -1 is what is left."""
        return self.op("Reshape", np.array(shape))

    def slice(self, start: int, stop: int, axis: int) -> Value:
        """Return a part of an axis."""
        return self.op("Slice", np.array([start]), np.array([stop]), np.array([axis]))

    def size(self, axis: int) -> Value:
        """Return the length of an axis, ()."""
        return self.op("Shape").op("Gather", axis)

    def row_of_each(self, index: Value) -> Value:
        """Return (B, …): of each x[b] (B, N, …) the row index[b] (B,)."""
        return self.op("GatherND", index.unsqueeze(1), batch_dims=1)


class Graph:
    """Collects nodes, inputs and constants, and makes a model of them."""

    def __init__(self) -> None:
        self._nodes: list[list[onnx.NodeProto]] = [[]]  # of the graph, and of the loops that are being written
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[tuple[Any, ...], onnx.TensorProto] = {}
        self._n_names = 0

    def input(self, name: str, kind: int, shape: Sequence[str | int]) -> Value:
        """Return an input of the graph; axes of any length have names."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return Value(self, name)

    def constant(self, value: npt.NDArray[Any] | float) -> Value:
        """Return a constant; equal ones are stored once."""
        if isinstance(value, int | float):
            value = np.array(value, np.int64 if isinstance(value, int) else np.float32)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(value, self._new_name("constant"))
        return Value(self, self._constants[key].name)

    def op(self, kind: str, *inputs: Operand | None, **attributes: Any) -> Value:
        """Return the result of an operator."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, n_outputs: int, *inputs: Operand | None, **attributes: Any) -> list[Value]:
        """Return the results of an operator that has several; None among the inputs leaves one out."""
        names = ["" if operand is None else self._value(operand).name for operand in inputs]
        outputs = [self._new_name(kind) for _ in range(n_outputs)]
        self._nodes[-1].append(helper.make_node(kind, names, outputs, **attributes))
        return [Value(self, name) for name in outputs]

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Return the values side by side."""
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def where(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """Return one value or the other, entry by entry."""
        return self.op("Where", condition, yes, no)

    def loop(
        self,
        times: Value,
        carried: Sequence[tuple[Value, int]],
        body: Callable[[Value, list[Value]], tuple[list[Value], list[tuple[Value, int]]]],
    ) -> list[Value]:
        """Return what the rounds collect, each stacked along a new first axis.

        The body gets the number of the round and what is carried, values of known kinds; it returns what is carried on
        and what is collected. It may use every value from outside.
        """
        number, go_on = Value(self, self._new_name("round")), Value(self, self._new_name("go_on"))
        inside = [Value(self, self._new_name("carried")) for _ in carried]
        self._nodes.append([])
        carried_on, collected = body(number, inside)
        outputs = [go_on.op("Identity"), *(value.op("Identity") for value in carried_on)]
        outputs += [value.op("Identity") for value, _ in collected]
        kinds = [kind for _, kind in carried]
        inputs = [_info(number, INTEGER, ()), _info(go_on, BOOL, ()), *map(_info, inside, kinds)]
        results = zip(outputs, (BOOL, *kinds, *(kind for _, kind in collected)), strict=True)
        inner = helper.make_graph(
            self._nodes.pop(),
            self._new_name("body"),
            inputs,
            [_info(value, kind) for value, kind in results],
        )
        start = [value for value, _ in carried]
        return self.ops("Loop", len(carried) + len(collected), times, None, *start, body=inner)[len(carried) :]

    def model(self, outputs: Mapping[str, tuple[Value, int, Sequence[str]]], notes: Mapping[str, str]) -> bytes:
        """Return the file: named outputs with their kinds and axes, and notes for whoever opens it."""
        named = [helper.make_node("Identity", [value.name], [name]) for name, (value, _, _) in outputs.items()]
        infos = [helper.make_tensor_value_info(name, kind, axes) for name, (_, kind, axes) in outputs.items()]
        nodes = [*self._nodes[0], *named]
        graph = helper.make_graph(nodes, "seq2slate", self._inputs, infos, [*self._constants.values()])
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="seq2slate")
        helper.set_model_props(model, dict(notes))
        onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content

    def _value(self, operand: Operand) -> Value:
        return operand if isinstance(operand, Value) else self.constant(operand)

    def _new_name(self, what: str) -> str:
        self._n_names += 1
        return f"{what}_{self._n_names}"


def _info(value: Value, kind: int, shape: tuple[()] | None = None) -> onnx.ValueInfoProto:
    """Declare an input or output of a loop's body; its shape is mostly left open."""
    return helper.make_tensor_value_info(value.name, kind, shape)
