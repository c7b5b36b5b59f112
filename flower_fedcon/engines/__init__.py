"""What carries a run's messages: function calls, Flower's grid, or Flower's simulation."""
