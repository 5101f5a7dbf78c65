"""Forty kinds of rows to cluster, ties, gaps, scales, outliers, sentinels. Makes them, runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
Shape = tuple[int, int]
Random = np.random.Generator


def sample(name: str, count: int, n: int) -> Rows:
    """`count` rows of `n` values of a distribution, always the same."""
    return DISTRIBUTIONS[name](np.random.default_rng([sorted(DISTRIBUTIONS).index(name), n]), (count, n))


def _float32(make: Callable[[Random, Shape], Rows]) -> Callable[[Random, Shape], Rows]:
    return lambda rng, shape: make(rng, shape).astype(np.float32)


def _normal_with(*far: float) -> Callable[[Random, Shape], Rows]:
    """Normal values, some of which are replaced by these."""

    def make(rng: Random, shape: Shape) -> Rows:
        rows = rng.standard_normal(shape)
        for place, value in enumerate(far):
            rows[:, place * (shape[1] // len(far))] = value
        return rows

    return make


def _some(value: float, share: float, make: Callable[[Random, Shape], Rows]) -> Callable[[Random, Shape], Rows]:
    """As made, but a share of the values is `value`."""
    return lambda rng, shape: np.where(rng.random(shape) < share, value, make(rng, shape))


def _normal(rng: Random, shape: Shape) -> Rows:
    return rng.standard_normal(shape)


def _lognormal(sigma: float) -> Callable[[Random, Shape], Rows]:
    return lambda rng, shape: rng.lognormal(0, sigma, shape)


def _powers(rng: Random, shape: Shape) -> Rows:
    """Signed powers of two, nearest to normal weights."""
    normal = rng.standard_normal(shape)
    return np.sign(normal) * np.exp2(np.rint(np.log2(np.maximum(np.abs(normal), 1e-6))))


def _lumps(count: int, width: float, apart: float) -> Callable[[Random, Shape], Rows]:
    return lambda rng, shape: rng.integers(0, count, shape) * apart + rng.standard_normal(shape) * width


def _four_bits(rng: Random, shape: Shape) -> Rows:
    """Weights in groups of 64, each quantised to 15 levels of its own scale."""
    groups = rng.standard_normal((shape[0], shape[1] // 64, 64)) * rng.lognormal(0, 0.5, (shape[0], shape[1] // 64, 1))
    scale = np.abs(groups).max(axis=2, keepdims=True) / 7
    return (np.rint(groups / scale) * scale).reshape(shape[0], -1)


def _scales(rng: Random, shape: Shape) -> Rows:
    """Normal values of scales from 1 to 10,000."""
    return rng.standard_normal(shape) * 10.0 ** rng.integers(0, 5, shape)


def _seventeen(rng: Random, shape: Shape) -> Rows:
    """Seventeen places, some with most of the values."""
    places = np.sort(rng.standard_normal((shape[0], 17)), axis=1)
    return np.take_along_axis(places, rng.choice(17, shape, p=_zipf(17)), axis=1)


def _zipf(count: int) -> NDArray[np.float64]:
    shares = 1 / np.arange(1.0, count + 1)
    return shares / shares.sum()


BELLS: dict[str, Callable[[Random, Shape], Rows]] = {
    "normal": _float32(_normal),
    "laplace": _float32(lambda rng, shape: rng.laplace(size=shape)),
    "t3": _float32(lambda rng, shape: rng.standard_t(3, shape)),
    "relu": _float32(lambda rng, shape: np.maximum(rng.standard_normal(shape), 0)),
    "bimodal": _float32(lambda rng, shape: rng.standard_normal(shape) * 0.3 + rng.choice([-2.0, 2.0], shape)),
    "uniform": _float32(lambda rng, shape: rng.random(shape)),
}

DISTRIBUTIONS: dict[str, Callable[[Random, Shape], Rows]] = {
    **BELLS,
    "20 powers of two": lambda rng, shape: 2.0 ** rng.integers(0, 20, shape),
    "20 powers of ten": lambda rng, shape: 10.0 ** rng.integers(0, 20, shape),
    "signed powers of two": _float32(_powers),
    "17 tied values": _seventeen,
    "19 tied values": lambda rng, shape: rng.choice(19, shape, p=_zipf(19)) ** 2.0,
    "40 tied values": lambda rng, shape: np.sqrt(rng.choice(40, shape, p=_zipf(40))),
    "3 values": lambda rng, shape: rng.choice([-1.0, 0.0, 1.0], shape),
    "4 bits in groups": _float32(_four_bits),
    "one 1e8": _float32(_normal_with(1e8)),
    "one -999999999": _normal_with(-999999999),
    "5% -999999999": _some(-999999999, 0.05, _normal),
    "five outliers": _normal_with(1e3, -1e4, 1e5, 5e5, 1e6),
    "fourteen outliers": _normal_with(*(10.0 ** np.arange(1, 15))),
    "1% outliers": _float32(lambda rng, shape: rng.standard_normal(shape) * np.where(rng.random(shape) < 0.01, 1e3, 1)),
    "lognormal 1": _float32(_lognormal(1)),
    "lognormal 3": _float32(_lognormal(3)),
    "lognormal 3, 90% zeros": _some(0, 0.9, _lognormal(3)),
    "normal, 99% zeros": _some(0, 0.99, _normal),
    "normal, half zeros": _some(0, 0.5, _normal),
    "cauchy": _float32(lambda rng, shape: rng.standard_cauchy(shape)),
    "pareto 1": lambda rng, shape: rng.pareto(1, shape),
    "exponential": _float32(lambda rng, shape: rng.exponential(size=shape)),
    "beta, at both ends": _float32(lambda rng, shape: rng.beta(0.3, 0.3, shape)),
    "20 lumps": _lumps(20, 1e-3, 1),
    "12 lumps": _lumps(12, 0.02, 1),
    "two far lumps": _lumps(2, 1, 1e8),
    "scales 1 to 1e4": _float32(_scales),
    "logarithms even": lambda rng, shape: np.exp(rng.uniform(-15, 15, shape)),
    "integers, normal": lambda rng, shape: np.rint(rng.standard_normal(shape) * 20).astype(np.int16),
    "integers, bytes": lambda rng, shape: rng.integers(0, 256, shape).astype(np.uint8),
    "integers, counts": lambda rng, shape: rng.geometric(0.02, shape),
    "float16": lambda rng, shape: (rng.standard_normal(shape) * 0.02).astype(np.float16),
    "float16, coarse": lambda rng, shape: (rng.standard_normal(shape) + 500).astype(np.float16),
    "a comb": lambda rng, shape: np.rint(rng.standard_normal(shape) * 8) + rng.random(shape) * 0.01,
}
