"""Cross-validation whose folds lie within each client."""
