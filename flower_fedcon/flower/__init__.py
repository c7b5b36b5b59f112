"""All that speaks Flower."""
