"""Falling curves through measured points: the closest falling sequence, monotone cubics between, and where they are 0.

Shape letters: B curves, K points.
"""

from __future__ import annotations

import math

import numpy as np

from draftwise.statistics.ratios import Array

__all__ = ["find_brackets", "find_roots", "fit_falling"]


def fit_falling(logs_BK: Array, weight_K: Array) -> Array:
    """Return [B, K] the falling sequences closest to given ones (min-max formula of isotonic regression)."""
    size = logs_BK.shape[1]
    sums_BK = np.concatenate([np.zeros((len(logs_BK), 1)), np.cumsum(logs_BK * weight_K, axis=1)], axis=1)
    mass_K = np.concatenate([[0.0], np.cumsum(weight_K)])
    fitted_BK = np.full_like(logs_BK, math.inf)
    for first in range(size):
        means_BK = (sums_BK[:, first + 1 :] - sums_BK[:, [first]]) / (mass_K[first + 1 :] - mass_K[first])
        highest_BK = np.maximum.accumulate(means_BK[:, ::-1], axis=1)[:, ::-1]
        fitted_BK[:, first:] = np.minimum(fitted_BK[:, first:], highest_BK)
    return fitted_BK


def find_brackets(x_K: Array, falling_BK: Array) -> tuple[Array, Array]:
    """Return [B] the last point at which falling curves lie above 0, and [B] the first at which they do not.

    Minus infinity and infinity where there is none.
    """
    num_above_B = (falling_BK > 0).sum(axis=1)
    edges = np.concatenate([[-math.inf], x_K, [math.inf]])
    return edges[num_above_B], edges[num_above_B + 1]


def find_roots(x_K: Array, falling_BK: Array, *, straight: bool = False) -> Array:
    """Return [B] where falling curves cross 0: minus infinity before the first point, infinity after the last.

    Between points they are monotone cubics, or straight.
    """
    num_above_B = (falling_BK > 0).sum(axis=1)
    outside_B = np.where(num_above_B == 0, -math.inf, math.inf)
    if len(x_K) == 1:
        return outside_B
    last_B = np.clip(num_above_B, 1, len(x_K) - 1)
    inside_B = (num_above_B > 0) & (num_above_B < len(x_K))
    rows_B = np.arange(len(falling_BK))
    ends_2B = np.stack([falling_BK[rows_B, last_B - 1], falling_BK[rows_B, last_B]])
    width_B = x_K[last_B] - x_K[last_B - 1]
    if straight:
        fall_B = ends_2B[0] - ends_2B[1]
        part_B = ends_2B[0] / np.where(fall_B > 0, fall_B, 1.0)
    else:
        slopes_BK = _slopes(x_K, falling_BK)
        part_B = _cross(ends_2B, np.stack([slopes_BK[rows_B, last_B - 1], slopes_BK[rows_B, last_B]]) * width_B)
    return np.where(inside_B, x_K[last_B - 1] + width_B * part_B, outside_B)


def _cross(ends_2B: Array, rises_2B: Array) -> Array:
    """Return [B] where cubics of given ends and slopes cross 0, as a part of the way, by bisection."""
    low_B, high_B = np.zeros(ends_2B.shape[1]), np.ones(ends_2B.shape[1])
    for _ in range(30):
        t_B = (low_B + high_B) / 2
        u_B = 1 - t_B
        first_B = u_B**2 * ((1 + 2 * t_B) * ends_2B[0] + t_B * rises_2B[0])
        height_B = first_B + t_B**2 * ((3 - 2 * t_B) * ends_2B[1] - u_B * rises_2B[1])
        low_B, high_B = np.where(height_B > 0, t_B, low_B), np.where(height_B > 0, high_B, t_B)
    return high_B


def _slopes(x_K: Array, y_BK: Array) -> Array:
    """Return [B, K] slopes with which cubic pieces stay monotone (Fritsch and Butland, SIAM J. Sci. Comput. 1984)."""
    step_K = np.diff(x_K)
    secant_BK = np.diff(y_BK, axis=1) / step_K
    slopes_BK = np.empty_like(y_BK)
    slopes_BK[:, 0], slopes_BK[:, -1] = secant_BK[:, 0], secant_BK[:, -1]
    before_BK, after_BK = secant_BK[:, :-1], secant_BK[:, 1:]
    weight_K = (step_K[:-1] + 2 * step_K[1:]) / (3 * (step_K[:-1] + step_K[1:]))
    mixed_BK = weight_K * after_BK + (1 - weight_K) * before_BK
    product_BK = before_BK * after_BK
    slopes_BK[:, 1:-1] = np.where(product_BK > 0, product_BK / np.where(mixed_BK == 0, 1.0, mixed_BK), 0.0)
    return slopes_BK
