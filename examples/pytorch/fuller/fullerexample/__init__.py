"""fullerexample: a Flower app as people have them."""
