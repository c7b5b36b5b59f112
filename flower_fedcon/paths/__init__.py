"""Regularization paths: one problem with many weights of its regularizer; choice of a weight."""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.paths.folds import CrossValidation, cross_validate
from flower_fedcon.paths.path import RegularizationPath, regularization_path
from flower_fedcon.paths.stability import StabilitySelection, stability_selection

__all__ = [
    "CrossValidation",
    "RegularizationPath",
    "StabilitySelection",
    "cross_validate",
    "regularization_path",
    "stability_selection",
]

point_elsewhere(__name__)
