"""pytorchexample: a Flower app for PyTorch."""
