# SPDX-License-Identifier: Apache-2.0
"""Approximate functions of the simulator: within the ISA's error, special values as its tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.sim.ptx.builder import elementwise

INF, NAN = float("inf"), float("nan")
DENORMAL = np.float32(1e-40)


def evaluate(op: str, x: np.ndarray) -> np.ndarray:
    return elementwise(f"{op}.f32 %d, %a;", {"a": x.astype(np.float32)}, {"d": np.float32})["d"]


def ulp(value: np.ndarray) -> np.ndarray:
    return np.spacing(np.abs(value).astype(np.float32)).astype(np.float64)


def spread(low: float, high: float, count: int = 4000) -> np.ndarray:
    """Log-uniform magnitudes 2**low to 2**high."""
    return (2.0 ** np.random.default_rng(0).uniform(low, high, count)).astype(np.float32)


# name: (op, arguments, exact function in f64, largest relative error)
RELATIVE: dict[str, tuple[str, np.ndarray, Callable[[np.ndarray], np.ndarray], float]] = {
    "ex2": ("ex2.approx", np.linspace(-125.9, 127.9, 6001), np.exp2, 2**-22),
    "ex2.ftz": ("ex2.approx.ftz", np.linspace(-125.9, 127.9, 6001), np.exp2, 2**-22),
    "ex2 near zero": ("ex2.approx.ftz", np.linspace(-1, 1, 6001), np.exp2, 2**-22),
    "lg2": ("lg2.approx", np.concatenate([spread(-125, -1.01), spread(1.01, 127)]), np.log2, 2**-22),
    "rcp": ("rcp.approx", spread(-125, 125), np.reciprocal, 2**-23),
    "rcp.ftz negative": ("rcp.approx.ftz", -spread(-125, 125), np.reciprocal, 2**-23),
    "rsqrt": ("rsqrt.approx", spread(-125, 127), lambda x: 1 / np.sqrt(x), 2**-22.4),
    "rsqrt.ftz": ("rsqrt.approx.ftz", spread(-125, 127), lambda x: 1 / np.sqrt(x), 2**-22.4),
    "sqrt": ("sqrt.approx", spread(-125, 127), np.sqrt, 2**-23),
    "tanh": ("tanh.approx", np.concatenate([spread(-20, 4), -spread(-20, 4)]), np.tanh, 2**-11),
}


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_error(name: str) -> None:
    op, x, exact, bound = RELATIVE[name]
    x = np.asarray(x, dtype=np.float32)
    want = exact(x.astype(np.float64))
    error = np.abs(evaluate(op, x).astype(np.float64) - want) / np.abs(want)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{op}({x[worst]}): relative error {error[worst]:.3g}, allowed {bound:.3g}"


ABSOLUTE: dict[str, tuple[str, np.ndarray, Callable[[np.ndarray], np.ndarray], float]] = {
    "lg2 around one": ("lg2.approx", np.linspace(0.5, 2, 6001), np.log2, 2**-22),
    "sin": ("sin.approx", np.linspace(-np.pi, np.pi, 4001), np.sin, 2**-20.5),
    "cos": ("cos.approx", np.linspace(-np.pi, np.pi, 4001), np.cos, 2**-20.5),
}


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_error(name: str) -> None:
    op, x, exact, bound = ABSOLUTE[name]
    x = np.asarray(x, dtype=np.float32)
    error = np.abs(evaluate(op, x).astype(np.float64) - exact(x.astype(np.float64)))
    assert error.max() <= bound


# The ISA's tables: (input, result) pairs, signs of zeros included.
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "ex2.approx": [
        (-INF, 0),
        (-0.0, 1),
        (0, 1),
        (INF, INF),
        (NAN, NAN),
        (200, INF),
        (-200, 0),
        (5, 32),
        (-DENORMAL, 1),
    ],
    "lg2.approx": [(-INF, NAN), (-1, NAN), (-0.0, -INF), (0, -INF), (INF, INF), (NAN, NAN), (1, 0), (8, 3)],
    "lg2.approx.ftz": [(DENORMAL, -INF), (-DENORMAL, -INF), (2, 1)],
    "rcp.approx": [(-INF, -0.0), (-0.0, -INF), (0, INF), (INF, 0), (NAN, NAN), (2, 0.5)],
    "rcp.approx.ftz": [(DENORMAL, INF), (-DENORMAL, -INF)],
    "rsqrt.approx": [(-INF, NAN), (-1, NAN), (-0.0, -INF), (0, INF), (INF, 0), (NAN, NAN), (4, 0.5)],
    "rsqrt.approx.ftz": [(DENORMAL, INF), (-DENORMAL, -INF)],
    "sqrt.approx": [(-INF, NAN), (-1, NAN), (-0.0, -0.0), (0, 0), (INF, INF), (NAN, NAN), (4, 2)],
    "sqrt.approx.ftz": [(DENORMAL, 0), (-DENORMAL, -0.0)],
    "tanh.approx": [(-INF, -1), (-0.0, -0.0), (0, 0), (INF, 1), (NAN, NAN), (30, 1)],
    "sin.approx": [(-INF, NAN), (-0.0, -0.0), (0, 0), (INF, NAN), (NAN, NAN)],
    "cos.approx": [(-INF, NAN), (-0.0, 1), (0, 1), (INF, NAN), (NAN, NAN)],
}


@pytest.mark.parametrize("op", SPECIAL)
def test_special_values(op: str) -> None:
    inputs, results = np.array(SPECIAL[op], dtype=np.float32).T
    for x, g, w in zip(inputs, evaluate(op, inputs), results, strict=True):
        same = np.isnan(g) if np.isnan(w) else (g == w and np.signbit(g) == np.signbit(w))
        assert same, f"{op}({x}) = {g}, expected {w}"


def test_ex2_flushes_subnormal_results_only_with_ftz() -> None:
    x = np.linspace(-148, -127, 200).astype(np.float32)
    assert (evaluate("ex2.approx.ftz", x[x < -126.5]) == 0).all()
    error = np.abs(evaluate("ex2.approx", x).astype(np.float64) - np.exp2(x.astype(np.float64)))
    assert (error <= 2.0**-149).all()


def test_lg2_takes_subnormals_without_ftz() -> None:
    x = np.array([1e-40, 2.0**-149, 2.0**-130], np.float32)
    assert np.allclose(evaluate("lg2.approx", x), np.log2(x.astype(np.float64)), rtol=2**-21)


@pytest.mark.parametrize("op, ulps", [("div.approx", 2), ("div.approx.ftz", 2), ("div.full", 2), ("div.full.ftz", 2)])
def test_division_error(op: str, ulps: int) -> None:
    a, b = spread(-40, 40), np.random.default_rng(1).permutation(spread(-40, 40)) * np.float32(-1)
    got = elementwise(f"{op}.f32 %d, %a, %b;", {"a": a, "b": b}, {"d": np.float32})["d"].astype(np.float64)
    want = a.astype(np.float64) / b.astype(np.float64)
    assert (np.abs(got - want) <= ulps * ulp(want)).all()


def test_division_special_values() -> None:
    a = np.array([1, -1, 0, INF, NAN, INF, 1], np.float32)
    b = np.array([0, 0, 0, INF, 1, 2, INF], np.float32)
    for op in ("div.approx", "div.full"):
        got = elementwise(f"{op}.f32 %d, %a, %b;", {"a": a, "b": b}, {"d": np.float32})["d"]
        assert np.array_equal(got, np.array([INF, -INF, NAN, NAN, NAN, INF, 0], np.float32), equal_nan=True), op


def half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16)


def test_f16_approximations() -> None:
    x = half(np.linspace(-14, 15, 4001))
    bits = elementwise("ex2.approx.f16 %d, %a;", {"a": x.view(np.uint16)}, {"d": np.uint16})["d"]
    want = np.exp2(x.astype(np.float64))
    assert (np.abs(bits.view(np.float16).astype(np.float64) / want - 1) <= 2**-9.9).all()
    x = half(np.linspace(-6, 6, 4001))
    bits = elementwise("tanh.approx.f16 %d, %a;", {"a": x.view(np.uint16)}, {"d": np.uint16})["d"]
    assert (np.abs(bits.view(np.float16).astype(np.float64) - np.tanh(x.astype(np.float64))) <= 2**-10.987).all()


def test_packed_ex2_works_on_both_halves() -> None:
    x = half(np.linspace(-10, 10, 512))
    packed = x.view(np.uint32)
    bits = elementwise("ex2.approx.f16x2 %d, %a;", {"a": packed}, {"d": np.uint32})["d"]
    got = bits.view(np.float16).astype(np.float64)
    assert (np.abs(got / np.exp2(x.astype(np.float64)) - 1) <= 2**-9.9).all()


@pytest.mark.parametrize("op, exact", [("ex2.approx.ftz", np.exp2), ("tanh.approx", np.tanh)])
def test_bf16_approximations(op: str, exact: Callable[[np.ndarray], np.ndarray]) -> None:
    x = (np.linspace(-5, 5, 2000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    value = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    bits = elementwise(f"{op}.bf16 %d, %a;", {"a": x}, {"d": np.uint16}, target="sm_90", device="h100")["d"]
    got = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert (np.abs(got - exact(value)) <= 2**-7 * np.maximum(np.abs(exact(value)), 2**-1)).all()
