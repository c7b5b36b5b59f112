"""Regularization paths: one problem for many weights of its regularizer, and the choice of one."""

from flower_fedcon.paths.folds import CrossValidation, cross_validate
from flower_fedcon.paths.path import RegularizationPath, regularization_path

__all__ = ["CrossValidation", "RegularizationPath", "cross_validate", "regularization_path"]
