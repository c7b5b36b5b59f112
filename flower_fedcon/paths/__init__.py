"""Regularization paths: one problem for many weights of its regularizer, and the choice of one."""

from flower_fedcon.paths.path import RegularizationPath, regularization_path

__all__ = ["RegularizationPath", "regularization_path"]
